"""Advantage estimators: pure functions from rewards (and values) on a Batch to per-token advantages, a family a file.

All arithmetic is float64 inside and float32 in the columns, so equal rewards give advantages of exactly 0 and nearly
equal ones are not drowned in rounding. Under mask 0 every column is 0. `estimators.py` has them by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from verl_core.algorithms.advantages.gae import decoupled_gae, gae
from verl_core.algorithms.advantages.group import gdpo, gpg, grpo, grpo_passk, opo, rloo
from verl_core.algorithms.advantages.optimal_token import optimal_token_baseline
from verl_core.algorithms.advantages.returns import reinforce_plus_plus, reinforce_plus_plus_baseline, remax
from verl_core.algorithms.advantages.rewards import right_answers, sequence_rewards, token_rewards
from verl_core.batch import Batch
from verl_core.config import catalogue
from verl_core.config.errors import UserError
from verl_core.config.schema import AlgorithmConfig

HINT = "see docs/algorithms.md, Your own"

__all__ = [
    "compute_advantage",
    "decoupled_gae",
    "gae",
    "gdpo",
    "gpg",
    "grpo",
    "grpo_passk",
    "opo",
    "optimal_token_baseline",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "right_answers",
    "rloo",
    "sequence_rewards",
    "token_rewards",
]


def compute_advantage(name: str, batch: Batch, cfg: AlgorithmConfig) -> Batch:
    """Adds the columns of an advantage estimator, built-in (`estimators.py`) or from a plug-in, and returns the batch.

    Reads mask_N and reward_S, token_reward_N where present (`token_rewards` makes it), and what the estimator's entry
    in the catalogue needs besides. Adds advantages_N, and returns_N where the estimator defines returns. Raises
    UserError for an unknown name, and for an estimator that returns something else.
    """
    columns = catalogue.implementation("advantage", name)(batch, cfg)
    if not isinstance(columns, Mapping) or "advantages_N" not in columns:
        raise UserError(f"advantage {name!r} returned {columns!r:.60}, not columns with advantages_N", HINT)
    try:
        return batch.add(**columns)
    except ValueError as error:
        raise UserError(f"advantage {name!r}: {error}", HINT) from error
