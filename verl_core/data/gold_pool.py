"""Scorers that look at the ground truths of data files, outside of any run."""

import os
from dataclasses import replace

from verl_core.config.schema import RewardConfig
from verl_core.rewards.pool import ScorerPool

MOST_WORKERS = 16


def gold_pool(reward: RewardConfig) -> ScorerPool:
    """A pool of `reward`'s rules with a process for each core that may be used, at most 16."""
    return ScorerPool(replace(reward, num_workers=min(len(os.sched_getaffinity(0)), MOST_WORKERS)))
