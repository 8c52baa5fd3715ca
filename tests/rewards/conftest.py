"""Scorer pools."""

import pytest

from verl_core.config.schema import CustomRewardConfig, RewardConfig
from verl_core.rewards.pool import ScorerPool


@pytest.fixture
def user_pool(tmp_path):
    """A pool that runs the body given, as a user's compute_score in a file."""
    pools = []

    def make(body, timeout_s=1.0, num_workers=1, limits=None, **kwargs):
        file = tmp_path / "reward.py"
        lines = "\n".join("    " + line for line in body.splitlines())
        signature = "data_source, solution_str, ground_truth, extra_info=None, **kwargs"
        file.write_text(f"import os, sys, time\ndef compute_score({signature}):\n{lines}\n", encoding="utf-8")
        cfg = RewardConfig(CustomRewardConfig(str(file)), kwargs, num_workers, timeout_s, **(limits or {}))
        pools.append(ScorerPool(cfg))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture(scope="module")
def gsm8k_pool():
    with ScorerPool(RewardConfig(num_workers=2)) as pool:
        yield pool
