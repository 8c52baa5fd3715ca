"""One real rank in this process with a tiny model, and batches for it, for the controller's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from verl_core.batch import Batch, Segment, Trajectory, collate
from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.config.schema import RlxConfig
from verl_core.controller.executors import WorkerGroup
from verl_core.controller.executors.base import placements
from verl_core.controller.executors.local import LocalExecutor
from verl_core.data.builtin import builtin_corpus
from verl_core.models.builtin import write_builtin


def tiny_config(profile: str, *keys: str) -> RlxConfig:
    """An effective configuration of a smoke profile."""
    return effective(resolve(profile, list(keys)).config)


def tiny_model(folder: Path) -> Path:
    """The builtin model, not warmed up."""
    write_builtin(folder, builtin_corpus("builtin:show-your-work", 0), 0)
    return folder


@contextmanager
def one_rank(config: RlxConfig, model: Path) -> Iterator[WorkerGroup]:
    executor = LocalExecutor()
    groups = asyncio.run(executor.start(config, placements(config), str(model)))
    try:
        yield groups["main"]
    finally:
        asyncio.run(executor.close())


def answers(prompts: int, n: int, seed: int = 0) -> Batch:
    """n answers of 2 to 6 tokens to each prompt, rewards 0 and 1 in turn, log-probs as an engine would give them."""
    draw = torch.Generator().manual_seed(seed)
    groups = []
    for p in range(prompts):
        group = []
        for k in range(n):
            length = int(torch.randint(2, 7, (), generator=draw))
            ids = torch.randint(0, 256, (3 + length,), generator=draw).tolist()
            parts = [Segment("prompt", 0, 3), Segment("response", 3, 3 + length)]
            mask, logps, versions = [0] * 3 + [1] * length, [0.0] * 3 + [-5.5] * length, [-1] * 3 + [0] * length
            group.append(Trajectory(ids, mask, logps, versions, parts, f"p{p}", k, reward=float(k % 2)))
        groups.append(group)
    return collate(groups)
