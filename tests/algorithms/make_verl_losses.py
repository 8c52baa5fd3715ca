"""Writes verl_0_9_1_losses.json: what veRL 0.9.1's policy losses, value loss and KL controller make of fixed inputs. To
be run as make_verl_fixture.py is, whose masks and log-probs it takes.

`losses` is what veRL defines well: every aggregation where the loss obeys it, tokens with mask 1, the loss once more
with weights of the rollout correction. `differences` is where rlx does otherwise on purpose
(docs/algorithms/policy_losses.md says why).
"""

import json
from pathlib import Path
from typing import Any

import torch
from make_verl_fixture import LOGP, MODES, REF_LOGP, TOOLS, VALUES, drawn
from verl.trainer.config import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos as verl
from verl.workers.config import ActorConfig, PolicyLossConfig

MASK = torch.tensor(TOOLS, dtype=torch.float32)
NEAR = (LOGP + 0.5 * drawn(4) - 0.25).clamp(max=-0.001)  # ratios of 0.78 to 1.28
ADVANTAGES = 4 * drawn(5) - 2
WEIGHTS = 0.5 + drawn(6)  # of the rollout correction
RETURNS = VALUES + drawn(7) - 0.5
VPREDS = VALUES + 0.8 * drawn(8) - 0.4
SCALE = 5
CLIP = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.15}
CAP = {"clip_ratio_c": 1.2}
CLIP_COV = {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.18, "clip_cov_ub": 0.3}  # all between: no draw
KL_COV = {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.4}
REINFORCE = RolloutCorrectionConfig(loss_type="reinforce", rollout_is="token", rollout_is_threshold=CAP["clip_ratio_c"])
# loss: keys under actor, keys under actor.policy_loss
LOSSES: dict[str, tuple[dict[str, float], dict[str, Any]]] = {
    "vanilla": (CLIP | CAP, {}),
    "gspo": ({"clip_ratio_low": 0.02, "clip_ratio_high": 0.02}, {}),
    "geo_mean": (CLIP, {}),
    "sapo": ({"tau_pos": 0.9, "tau_neg": 1.3}, {}),
    "cispo": (CLIP, {}),
    "gpg": ({}, {}),
    "bypass_mode": (CAP, {"rollout_correction": REINFORCE}),
    "dppo_tv": ({"clip_ratio_low": 0.02, "clip_ratio_high": 0.03} | CAP, {}),
    "dppo_kl": ({"clip_ratio_low": 0.002, "clip_ratio_high": 0.003} | CAP, {}),
    "clip_cov": ({"clip_ratio_low": 0.5, "clip_ratio_high": 0.5}, CLIP_COV),  # nothing clipped that it would not draw
    "kl_cov": ({}, KL_COV),
    "dro": ({}, {"dro_beta": 0.7}),
}
IGNORE_THE_MODE = ("sapo", "geo_mean")  # both take seq-mean-token-mean, the second over the rows of a micro-batch
NO_WEIGHTS = ("geo_mean", "bypass_mode")  # a geometric mean of them; its own


def actor(name: str, more: dict[str, Any] | None = None) -> ActorConfig:
    keys, chosen = LOSSES[name]
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode=name, **chosen),
        global_batch_info={"loss_scale_factor": SCALE},
        **keys | (more or {}),
    )


def loss(name: str, mode: str = "token-mean", new: torch.Tensor = NEAR, old: torch.Tensor = LOGP, **rest: Any):
    """Value, gradient and metrics."""
    logp = new.clone().requires_grad_()
    function = verl.get_policy_loss_fn(name)
    value, metrics = function(old, logp, ADVANTAGES, MASK, mode, actor(name), **rest)
    return value.item(), (torch.autograd.grad(value, logp)[0] * MASK).tolist(), metrics


def well_defined(name: str) -> dict[str, Any]:
    modes = ("seq-mean-token-mean",) if name in IGNORE_THE_MODE else MODES
    keys, chosen = LOSSES[name]
    _, gradient, metrics = loss(name, modes[0])
    return {
        "actor": keys,
        "policy_loss": {key: value for key, value in chosen.items() if key != "rollout_correction"},
        "values": {mode: loss(name, mode)[0] for mode in modes},
        "gradient": gradient,  # of the first aggregation
        "metrics": {key: value for key, value in metrics.items() if key.startswith("actor/")},
        **({} if name in NO_WEIGHTS else {"weighted": loss(name, modes[0], rollout_is_weights=WEIGHTS)[0]}),
    }


def value_loss(mode: str) -> float:
    return float(verl.compute_value_loss(VPREDS, RETURNS, VALUES, MASK, 0.2, mode, loss_scale_factor=SCALE)[0])


def far(name: str) -> float:
    """The reference's log-probs as the present ones: the covariances of the two are not alike."""
    return loss(name, new=REF_LOGP)[0]


def at_exponent(name: str, exponent: float) -> float:
    """One token of advantage -1 for each mask of 1, that many nats apart."""
    old = torch.full_like(LOGP, -exponent)
    value, _ = verl.get_policy_loss_fn(name)(
        old, torch.zeros_like(old), -torch.ones_like(old), MASK, config=actor(name)
    )
    return value.item()


def halves(name: str) -> float:
    """The mean of two micro-batches of four rows and two, as a trainer that averages them has it."""
    parts = [slice(0, 4), slice(4, 6)]
    function, config = verl.get_policy_loss_fn(name), actor(name)
    return sum(function(LOGP[p], NEAR[p], ADVANTAGES[p], MASK[p], config=config)[0].item() for p in parts) / 2


def controller() -> list[float]:
    control, seen = verl.AdaptiveKLController(0.1, 0.05, 1000), []
    for kl, sequences in ((0.054, 64), (0.5, 128), (0.0, 64), (0.05, 256), (0.047, 1000)):
        control.update(kl, sequences)
        seen.append([kl, sequences, float(control.value)])
    return seen


if __name__ == "__main__":
    found = {
        "source": "verl/trainer/ppo/core_algos.py of verl-0.9.1-py3-none-any.whl, float32 on the CPU, "
        f"torch {torch.__version__.split('+')[0]}",
        "near": NEAR.tolist(),
        "advantages": ADVANTAGES.tolist(),
        "weights": WEIGHTS.tolist(),
        "returns": RETURNS.tolist(),
        "vpreds": VPREDS.tolist(),
        "scale": SCALE,
        **{f"loss {name}": well_defined(name) for name in LOSSES},
        "value_loss": {mode: value_loss(mode) for mode in MODES},
        "controller": controller(),
        "differences": {
            "far": {name: far(name) for name in ("clip_cov", "kl_cov")},
            "exponent of 15": {"gspo": at_exponent("gspo", 15.0)},
            "exponent of 25": {name: at_exponent(name, 25.0) for name in ("clip_cov", "kl_cov")},
            "halves": halves("geo_mean"),
            "weighted": loss("geo_mean", rollout_is_weights=WEIGHTS)[0],
            "token-mean": {name: loss(name)[0] for name in IGNORE_THE_MODE},
        },
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    (Path(__file__).parent / "verl_0_9_1_losses.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
