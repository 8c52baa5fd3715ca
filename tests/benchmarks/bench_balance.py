"""The planner of a training step: sequences dealt to ranks by the model's FLOPs, and cut into micro-batches.

    python tests/benchmarks/bench_balance.py [sequences] [ranks]

Lengths are lognormal (prompts of 200 tokens, answers of 500 in the median, at most 32,000). One JSON line a model:
milliseconds of each part (medians of seven rounds) and max / mean of FLOPs and tokens over ranks, balanced by FLOPs and
by tokens in turn.
"""

import json
import sys
import time
from statistics import fmean, median

import torch

from verl_core.batch.packing import balance, micro_batches
from verl_core.planning.flops import Flops
from verl_core.planning.models import shape_of

MODELS = ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B", "Qwen/Qwen3-30B-A3B")
BUDGET = 32_768
ROUNDS = 7


def imbalance(value: list[float], shares: list[list[int]]) -> float:
    sums = [sum(value[s] for s in share) for share in shares]
    return round(max(sums) / fmean(sums), 4)


def measure(model: str, sequences: int, ranks: int) -> dict:
    draw = torch.Generator().manual_seed(0)
    answers = (torch.randn(sequences, generator=draw) * 1.2 + 6.2).exp().long().clamp(1, 32_000).tolist()
    lengths = [200 + n for n in answers]
    update = Flops.forward(shape_of(model, {})).update()
    took: dict[str, list[float]] = {"cost_ms": [], "deal_ms": [], "cut_ms": []}
    for _ in range(ROUNDS):
        marks = [time.perf_counter()]
        cost = [update.sequence(n, a) for n, a in zip(lengths, answers, strict=True)]
        marks.append(time.perf_counter())
        by_flops = balance(cost, ranks)
        marks.append(time.perf_counter())
        cuts = [micro_batches([lengths[s] for s in share], tokens=BUDGET) for share in by_flops]
        marks.append(time.perf_counter())
        for name, start, end in zip(took, marks, marks[1:], strict=False):
            took[name].append(1000 * (end - start))
    by_tokens = balance(lengths, ranks)
    return {
        "model": model, "sequences": sequences, "ranks": ranks, "tokens": sum(lengths),
        **{name: round(median(rounds), 2) for name, rounds in took.items()},
        "flops_max_over_mean": {"by_flops": imbalance(cost, by_flops), "by_tokens": imbalance(cost, by_tokens)},
        "tokens_max_over_mean": {
            "by_flops": imbalance(lengths, by_flops), "by_tokens": imbalance(lengths, by_tokens)
        },
        "micro_batches": {"min": min(map(len, cuts)), "max": max(map(len, cuts))},
    }  # fmt: skip


def main(words: list[str]) -> None:
    sequences, ranks = (int(word) for word in (*words, *("16384", "64")[len(words) :]))
    for model in MODELS:
        print(json.dumps(measure(model, sequences, ranks)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
