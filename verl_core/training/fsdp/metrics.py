"""Joining the metrics of micro-batches and ranks. A metric's parts add up exactly (see `Metric`), so that what is
logged does not depend on how a mini-batch was cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch.distributed as dist

from verl_core.algorithms.loss import Metric

type Parts = dict[str, Metric]  # values and weights as floats


def join(parts: Iterable[Mapping[str, Metric]]) -> Parts:
    """The parts of each name as one; a name may be absent from some."""
    joined: Parts = {}
    for metrics in parts:
        for name, m in metrics.items():
            value, weight = float(m.value), float(m.weight)
            if name not in joined:
                joined[name] = Metric(value, weight, m.how)
                continue
            old = joined[name]
            total = {"max": max, "min": min}.get(m.how, lambda a, b: a + b)(float(old.value), value)
            joined[name] = Metric(total, float(old.weight) + weight, m.how)
    return joined


def across_ranks(parts: Parts, group: dist.ProcessGroup | None, world: int) -> Parts:
    """`join` over all ranks; every rank gets the result."""
    if world == 1:
        return parts
    gathered: list[Parts] = [{} for _ in range(world)]
    dist.all_gather_object(gathered, parts, group=group)
    return join(gathered)


def values(parts: Parts) -> dict[str, float]:
    """The number of each metric; a mean over nothing is left out."""
    return {
        name: float(m.value) / float(m.weight) if m.how == "mean" else float(m.value)
        for name, m in parts.items()
        if m.how != "mean" or m.weight
    }
