"""Scorers that look at the ground truths of data files, outside of any run."""

import os
from collections.abc import Sequence
from dataclasses import replace

from verl_core.config.schema import RewardConfig
from verl_core.rewards.pool import ScorerPool
from verl_core.rewards.registry import Part

MOST_WORKERS = 16


def gold_pool(reward: RewardConfig, parts: Sequence[Part] | None = None) -> ScorerPool:
    """A pool under `reward`'s limits with a process for each core that may be used, at most 16. `parts`: as in
    `ScorerPool`."""
    return ScorerPool(replace(reward, num_workers=min(len(os.sched_getaffinity(0)), MOST_WORKERS)), parts=parts)
