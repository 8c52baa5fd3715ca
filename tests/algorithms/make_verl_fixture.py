"""Writes verl_0_9_1.json: fixed inputs, and what veRL 0.9.1's functions make of them.

    pip download verl==0.9.1 --no-deps -d wheel && unzip wheel/verl-*.whl -d verl_wheel
    pip install --no-deps --target verl_needs tensordict==0.10.0 pyvers codetiming orjson
    PYTHONPATH=verl_wheel:verl_needs python tests/algorithms/make_verl_fixture.py

in an environment with torch, numpy, ray and omegaconf. Inputs are dense: six answers of up to five tokens. Only what
veRL defines well is kept: groups of two or more, tokens with mask 1, and for gpg rewards whose two definitions of alpha
agree (docs/algorithms.md has the differences). make_verl_losses.py has the losses.
"""

import json
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo import core_algos as verl

GROUPS = [0, 0, 0, 1, 1, 1]
PLAIN = [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
TOOLS = [[1, 0, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 0, 0], [1, 1, 0, 1, 0], [1, 1, 1, 0, 0]]
REWARDS = [1.0, -0.5, 0.25, 2.0, 0.75, 0.5]
OTHER_REWARDS = [0.5, 0.5, 1.0, -1.0, 0.0, 0.125]
GREEDY = [0.5, 0.5, 0.5, 1.25, 1.25, 1.25]
GAMMA, LAM = 0.9, 0.8
CONFIG = OmegaConf.create({"gamma": GAMMA, "norm_adv_by_std_in_grpo": True})


def drawn(seed: int) -> torch.Tensor:
    """Thirty numbers in (0, 1) with few digits, so that they are the same in JSON."""
    return (torch.rand(6, 5, generator=torch.Generator().manual_seed(seed)) * 1000).round() / 1000


def on_last(mask: torch.Tensor, rewards: list[float]) -> torch.Tensor:
    out = torch.zeros(mask.shape)
    for i, reward in enumerate(rewards):
        out[i, int(mask[i].nonzero()[-1])] = reward
    return out


VALUES, LOGP, REF_LOGP, SQUARES = drawn(0), -3 * drawn(1), -3 * drawn(2), drawn(3)


def advantages(masks: list[list[int]]) -> dict[str, list]:
    mask = torch.tensor(masks, dtype=torch.float32)
    reward, index = on_last(mask, REWARDS), np.array(GROUPS)
    both = [on_last(mask, REWARDS), on_last(mask, OTHER_REWARDS)]
    grouped = {"token_level_rewards": reward, "response_mask": mask, "index": index, "config": CONFIG}
    energy = {"old_log_probs": LOGP, "sum_pi_squared": SQUARES}
    attention = torch.cat([torch.ones(6, 1, dtype=torch.long), torch.tensor(PLAIN)], 1)
    made = {
        "gae": verl.compute_gae_advantage_return(reward, VALUES, mask, GAMMA, LAM),
        "grpo": verl.compute_grpo_outcome_advantage(reward, mask, index),
        "grpo, no std": verl.compute_grpo_outcome_advantage(reward, mask, index, norm_adv_by_std_in_grpo=False),
        "grpo_passk": verl.compute_grpo_passk_outcome_advantage(**grouped),
        "rloo": verl.compute_rloo_outcome_advantage(**grouped),
        "opo": verl.compute_opo_outcome_advantage(**grouped),
        "gpg": verl.compute_gpg_outcome_advantage(**grouped),
        "reinforce_plus_plus": verl.compute_reinforce_plus_plus_outcome_advantage(reward, mask, CONFIG),
        "reinforce_plus_plus_baseline": verl.compute_reinforce_plus_plus_baseline_outcome_advantage(**grouped),
        "remax": verl.compute_remax_outcome_advantage(reward, torch.tensor(GREEDY), mask),
        "tir_optimal_token_baseline": verl.compute_multi_turn_optimal_token_baseline_advantage(
            reward, mask, index, **energy
        ),
    }
    if masks is PLAIN:  # with tool text veRL's tail counts tokens where its places count positions
        made["optimal_token_baseline"] = verl.compute_optimal_token_baseline_advantage(reward, mask, index, **energy)
        names = {"gdpo_reward_keys": ["score", "format"], "gdpo_reward_weights": [1.0, 0.5]}
        made["gdpo"] = verl.compute_gdpo_outcome_advantage(
            reward,
            mask,
            index,
            config=OmegaConf.create(names),
            non_tensor_batch={k: s.sum(1).numpy() for k, s in zip(names["gdpo_reward_keys"], both, strict=True)},
            batch={"prompts": torch.ones(6, 1), "attention_mask": attention},
        )
    return {name: (adv * mask).tolist() for name, (adv, _) in made.items()}


def kl(name: str) -> dict[str, list]:
    logp = LOGP.clone().requires_grad_()
    value = verl.kl_penalty(logp, REF_LOGP, name)
    gradient = torch.autograd.grad(value.sum(), logp)[0]
    return {"value": value.tolist(), "gradient": gradient.tolist()}


def aggregation(mode: str) -> float:
    mask = torch.tensor(TOOLS, dtype=torch.float32)
    return float(verl.agg_loss(VALUES, mask, mode, loss_scale_factor=5))


KL_NAMES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "low_var_kl+", "k3+")
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")

if __name__ == "__main__":
    found = {
        "source": "verl/trainer/ppo/core_algos.py of verl-0.9.1-py3-none-any.whl, float32 on the CPU, "
        f"torch {torch.__version__.split('+')[0]}",
        "groups": GROUPS,
        "masks": {"plain": PLAIN, "tools": TOOLS},
        "rewards": REWARDS,
        "other_rewards": OTHER_REWARDS,
        "greedy": GREEDY,
        "gamma": GAMMA,
        "lam": LAM,
        "values": VALUES.tolist(),
        "logp": LOGP.tolist(),
        "ref_logp": REF_LOGP.tolist(),
        "squares": SQUARES.tolist(),
        "advantages": {"plain": advantages(PLAIN), "tools": advantages(TOOLS)},
        "kl": {name: kl(name) for name in KL_NAMES},
        "aggregation": {mode: aggregation(mode) for mode in MODES},
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    (Path(__file__).parent / "verl_0_9_1.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
