"""Batches for the tests of this folder, and what joins metric parts as an engine does."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch
from torch import Tensor

from verl_core.algorithms.loss import Metric
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch, Trajectory
from verl_core.config.schema import AlgorithmConfig

NAN = float("nan")
KEYS = ["score", "format"]


def config(**keys) -> AlgorithmConfig:
    """An algorithm's configuration with what every estimator asks for."""
    return AlgorithmConfig(gdpo_reward_keys=KEYS, gdpo_reward_weights=[1.0, 0.5], **keys)


def complete(batch: Batch, seed: int = 0) -> Batch:
    """The batch with all that some estimator reads besides masks, groups and reward_S, drawn by sequence, where it is
    missing."""
    g = torch.Generator().manual_seed(seed)
    parts_S, greedy_P = torch.randn(batch.S, generator=g), torch.randn(max(batch.P, 1), generator=g)
    rows = [
        Trajectory([], [], [], [], [], "", s, reward=float(batch["reward_S"][s]), reward_parts={"format": float(part)})
        for s, part in enumerate(parts_S)
    ]
    for row, p in zip(rows, batch.group_S.tolist(), strict=True):
        row.meta["greedy_reward"] = float(greedy_P[p])
    M = int(batch["mask_N"].sum())
    draws = {"old_logp_N": -torch.rand(M, generator=g), "sum_p_sq_N": torch.rand(M, generator=g)}
    columns = {
        name: torch.full((batch.N,), NAN).masked_scatter(batch["mask_N"], value) for name, value in draws.items()
    }
    missing = {k: v for k, v in {**columns, "trajectory_blob": rows}.items() if k not in batch}
    return batch.add(**missing)


def batch_of(masks: list[list[int]], groups: list[int] | None = None, **columns: list | Tensor) -> Batch:
    """A batch from the masks of its sequences and its columns as flat lists."""
    flat = [bool(m) for mask in masks for m in mask]
    groups = list(range(len(masks))) if groups is None else groups
    tensors = {k: torch.as_tensor(v) for k, v in columns.items()}
    return Batch(
        torch.tensor([len(m) for m in masks], dtype=torch.int64),
        torch.tensor(groups, dtype=torch.int64),
        {"mask_N": torch.tensor(flat, dtype=torch.bool), **tensors},
    )


def random_batch(seed: int, prompts: int = 3, samples: int = 3, gaps: bool = True, poison: float | None = NAN) -> Batch:
    """Groups of sequences of unlike lengths, some with tool text in the middle, some with nothing produced, with every
    column an algorithm reads; `poison` lies under mask 0 (None: leave the numbers there)."""
    rng = random.Random(seed)
    g = torch.Generator().manual_seed(seed)
    masks = []
    for _ in range(prompts * samples):
        mask = [0] * rng.randint(1, 3) + [1] * rng.randint(0, 5)
        if gaps and rng.random() < 0.5:
            mask += [0] * rng.randint(1, 3) + [1] * rng.randint(0, 4)
        masks.append(mask)
    batch = batch_of(masks, [p for p in range(prompts) for _ in range(samples)])
    draw = lambda: torch.randn(batch.N, generator=g, dtype=torch.float64)  # noqa: E731
    for name in ("old_logp", "ref_logp", "rollout_logp"):
        batch.add(**{f"{name}_N": -draw().abs()})
    for name in ("values", "returns", "advantages", "token_reward"):
        batch.add(**{f"{name}_N": draw()})
    batch.add(sum_p_sq_N=draw().abs().clamp(max=1))
    batch.add(correction_N=torch.tensor([random.Random(seed + i).choice([0.0, 0.5, 1.5]) for i in range(batch.N)]))
    batch.add(selected_N=torch.rand(batch.N, generator=g) < 0.3)
    if poison is not None:
        for value in batch.columns.values():
            if value.is_floating_point():
                value[~batch["mask_N"]] = poison
    batch.add(reward_S=torch.randn(batch.S, generator=g))
    return complete(batch, seed)


def padded(batch: Batch, fill: float) -> Batch:
    """The batch with two more tokens before and three behind every sequence, under mask 0; `fill` is what floats are
    there, and where mask 0 was before."""
    columns = {name: value for name, value in batch.columns.items() if not name.endswith("_N")}
    out = Batch(batch.length_S + 5, batch.group_S, columns)
    at_N = out.cu_seqlens_S1[batch.seq_N] + 2 + batch.position_N
    for name in batch.columns.keys() - columns.keys():
        value = batch[name].detach()
        floats = value.is_floating_point()
        kept = value.masked_fill(~batch["mask_N"], fill) if floats else value
        out.add(**{name: value.new_full((out.N,), fill if floats else 0).index_copy(0, at_N, kept)})
    return out


def split(column_N: Tensor, batch: Batch) -> list[list]:
    """A token column as one list a sequence."""
    return [part.tolist() for part in column_N.split(batch.length_S.tolist())]


def produced_rows(batch: Batch, names: Iterable[str]) -> list[dict[str, list]]:
    """What stands on the produced tokens of each sequence that has any: column name without _N -> list."""
    at = produced(batch)
    sizes = at.count_S.tolist()
    parts = {name: [part.tolist() for part in at.pick(batch[f"{name}_N"]).split(sizes)] for name in names}
    return [{name: part[s] for name, part in parts.items()} for s, size in enumerate(sizes) if size]


def joined(parts: Iterable[dict[str, Metric]]) -> dict[str, float]:
    """Metric parts of all micro-batches as the numbers that are logged."""
    out: dict[str, list[Metric]] = {}
    for part in parts:
        for name, metric in part.items():
            out.setdefault(name, []).append(metric)
    return {name: _join(metrics) for name, metrics in out.items()}


def _join(metrics: list[Metric]) -> float:
    values = [float(m.value) for m in metrics]
    match metrics[0].how:
        case "mean":
            weight = sum(float(m.weight) for m in metrics)
            return sum(values) / weight if weight else 0.0
        case "sum":
            return sum(values)
        case "max":
            return max(values)
    return min(values)
