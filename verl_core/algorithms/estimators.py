"""The advantage estimators as the catalogue registers them: functions from a batch and the algorithm's configuration to
columns. A plug-in adds its own with `register("advantage", NAME, where="module:function")`. The arithmetic is in
`advantages.py`."""

from __future__ import annotations

from torch import Tensor

from verl_core.algorithms import advantages
from verl_core.batch import Batch
from verl_core.config.schema import AlgorithmConfig

Columns = dict[str, Tensor]


def gae(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    advantages_N, returns_N = advantages.gae(batch, _token_rewards(batch), batch["values_N"], cfg.gamma, cfg.lam)
    return {"advantages_N": advantages_N, "returns_N": returns_N}


def grpo(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    # null outside an effective configuration means the estimator's own definition
    norm_by_std = cfg.norm_adv_by_std_in_grpo is not False
    return {"advantages_N": advantages.grpo(batch, advantages.sequence_rewards(batch), norm_by_std)}


def rloo(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    return {"advantages_N": advantages.rloo(batch, advantages.sequence_rewards(batch))}


def reinforce_plus_plus(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    advantages_N, returns_N = advantages.reinforce_plus_plus(batch, _token_rewards(batch), cfg.gamma)
    return {"advantages_N": advantages_N, "returns_N": returns_N}


def _token_rewards(batch: Batch) -> Tensor:
    return batch["token_reward_N"] if "token_reward_N" in batch else advantages.token_rewards(batch)
