"""CPU time of an advantage and the policy loss with its gradient, against veRL 0.9.1's functions.

    python tests/benchmarks/bench_algorithms.py WHEEL [NEEDS] [sizes, e.g. 512,1024]

WHEEL: the unpacked verl-0.9.1-py3-none-any.whl; NEEDS: a folder with what it imports beside torch (tensordict, pyvers,
codetiming, orjson; make_verl_fixture.py in tests/algorithms says how). veRL runs in a process of its own. Size n is n
answers, 8 to a prompt, of 1 to n tokens (uniform) or all of n (full: nothing is padding); one thread, float32. rlx gets
them as a ragged batch, veRL as its padded tensors. One JSON line an advantage, size and kind of lengths: milliseconds
of both sides (medians of 5), their ratio, and the largest error of both advantages against float64 (grpo, rloo).
"""

import json
import os
import subprocess
import sys
import time
from statistics import median

import torch

NAMES = ("gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "opo", "grpo_passk")
SIZES = (512, 1024, 2048)
G, ROUNDS = 8, 5


def inputs(n: int, lengths: str) -> dict[str, torch.Tensor]:
    """Dense [n, n] tables and what goes with them, the same on both sides."""
    draw = torch.Generator().manual_seed(n)
    length = torch.randint(1, n + 1, (n,), generator=draw) if lengths == "uniform" else torch.full((n,), n)
    mask = (torch.arange(n)[None, :] < length[:, None]).float()
    reward_S = 0.1 * torch.randint(0, 11, (n,), generator=draw).float()
    reward = torch.zeros(n, n).scatter(1, (length - 1)[:, None], reward_S[:, None])
    table = lambda: torch.randn(n, n, generator=draw)  # noqa: E731
    old = -table().abs()
    return {
        "mask": mask, "reward": reward, "reward_S": reward_S, "length": length, "values": table(), "old": old,
        "logp": old + 0.1 * table(), "group": torch.arange(n) // G,
    }  # fmt: skip


def timed(work) -> tuple[float, torch.Tensor]:
    """Milliseconds, and the advantages."""
    took = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        advantages = work()
        took.append(1000 * (time.perf_counter() - start))
    return median(took), advantages


def rlx_side(name: str, x: dict[str, torch.Tensor]):
    from verl_core.algorithms.advantages import compute_advantage
    from verl_core.algorithms.loss import Need, Totals
    from verl_core.algorithms.losses import PolicyLoss
    from verl_core.batch import Batch
    from verl_core.config.schema import AlgorithmConfig

    inside = x["mask"].bool()
    column = lambda key: x[key][inside]  # noqa: E731
    batch = Batch(
        x["length"],
        x["group"],
        {
            "mask_N": torch.ones(int(x["length"].sum()), dtype=torch.bool),
            "reward_S": x["reward_S"],
            "token_reward_N": column("reward"),
            "values_N": column("values"),
            "old_logp_N": column("old"),
        },
    )
    logp_N, loss, cfg = column("logp").requires_grad_(), PolicyLoss(want_entropy=False), AlgorithmConfig(lam=0.95)

    def work() -> torch.Tensor:
        fresh = Batch(batch.length_S, batch.group_S, batch.columns)  # nothing kept from the round before
        compute_advantage(name, fresh, cfg)
        value, _ = loss({Need.LOGP: logp_N}, fresh, Totals.of(fresh))
        torch.autograd.grad(value, logp_N)
        return fresh["advantages_N"]

    return work


def verl_side(name: str, x: dict[str, torch.Tensor]):
    from omegaconf import OmegaConf
    from verl.trainer.ppo import core_algos as verl
    from verl.workers.config import ActorConfig

    advantage = verl.get_adv_estimator_fn(name)
    cfg = OmegaConf.create({"gamma": 1.0, "norm_adv_by_std_in_grpo": True})
    actor = ActorConfig(strategy="fsdp", rollout_n=G, ppo_micro_batch_size_per_gpu=1)
    common = {"token_level_rewards": x["reward"], "response_mask": x["mask"]}
    own = {"values": x["values"], "gamma": 1.0, "lam": 0.95} if name == "gae" else {"config": cfg}
    own |= {} if name in ("gae", "reinforce_plus_plus") else {"index": x["group"].numpy()}
    logp, inside = x["logp"].clone().requires_grad_(), x["mask"].bool()

    def work() -> torch.Tensor:
        adv, _ = advantage(**common, **own)
        value, _ = verl.compute_policy_loss_vanilla(x["old"], logp, adv, x["mask"], "token-mean", actor)
        torch.autograd.grad(value, logp)
        return adv[inside]

    return work


def exact(name: str, x: dict[str, torch.Tensor]) -> torch.Tensor | None:
    reward = x["reward_S"].double().view(-1, G)
    centred = reward - reward.mean(1, keepdim=True)
    scaled = {"grpo": centred / (reward.std(1, keepdim=True) + 1e-6), "rloo": centred * G / (G - 1)}
    return scaled[name].flatten().repeat_interleave(x["length"]) if name in scaled else None


def measure(side, n: int) -> list[dict]:
    torch.set_num_threads(1)
    rows = []
    for lengths in ("uniform", "full"):
        x = inputs(n, lengths)
        for name in NAMES:
            ms, advantages = timed(side(name, x))
            target = exact(name, x)
            error = None if target is None else float((advantages.double() - target).abs().max())
            rows.append({"advantage": name, "lengths": lengths, "ms": round(ms, 2), "error": error})
    return rows


def main() -> None:
    if sys.argv[1] == "--verl":
        print(json.dumps(measure(verl_side, int(sys.argv[2]))))
        return
    folders, sizes = [a for a in sys.argv[1:] if not a[0].isdigit()], [a for a in sys.argv[1:] if a[0].isdigit()]
    wanted = [int(size) for size in sizes[0].split(",")] if sizes else list(SIZES)
    for n in wanted:  # turn by turn, so that both sides meet the same machine
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, folders))}
        load = os.getloadavg()[0]
        other = subprocess.run(
            [sys.executable, __file__, "--verl", str(n)],
            env=env,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        verl = json.loads(other.stdout.splitlines()[-1])
        for own, theirs in zip(measure(rlx_side, n), verl, strict=True):
            row = {"benchmark": "algorithms", "advantage": own["advantage"], "size": n, "lengths": own["lengths"]}
            row |= {
                "load_before": round(load, 1),
                "rlx_ms": own["ms"],
                "verl_ms": theirs["ms"],
                "times_faster": round(theirs["ms"] / own["ms"], 2),
            }
            if own["error"] is not None:
                row |= {"rlx_error": own["error"], "verl_error": theirs["error"]}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
