"""The advantage estimators as the catalogue registers them: functions from a batch and the algorithm's configuration to
columns. A plug-in adds its own with `register("advantage", NAME, where="module:function")`. The arithmetic is in
`advantages/`."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_core.algorithms import advantages
from verl_core.algorithms.correction import importance_weights, log_ratio
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch, Trajectory
from verl_core.config.errors import RunError
from verl_core.config.rollout_correction import weights_of
from verl_core.config.schema import AlgorithmConfig

Columns = dict[str, Tensor]


def gae(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    return _both(advantages.gae(batch, _token_rewards(batch), batch["values_N"], cfg.gamma, cfg.lam))


def decoupled_gae(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    rewards_N, values_N = _token_rewards(batch), batch["values_N"]
    return _both(
        advantages.decoupled_gae(batch, rewards_N, values_N, cfg.gamma, cfg.lam, cfg.lam_critic, cfg.lam_alpha)
    )


def grpo(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    return {"advantages_N": advantages.grpo(batch, advantages.sequence_rewards(batch), _by_std(cfg))}


def grpo_passk(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    return {"advantages_N": advantages.grpo_passk(batch, advantages.sequence_rewards(batch), _by_std(cfg))}


def gdpo(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    weights = cfg.gdpo_reward_weights or [1.0] * len(cfg.gdpo_reward_keys)
    rows: list[Trajectory] = batch["trajectory_blob"]
    reward_SK = torch.tensor([[_part(t, key) for key in cfg.gdpo_reward_keys] for t in rows], dtype=torch.float32)
    return {"advantages_N": advantages.gdpo(batch, reward_SK.reshape(batch.S, len(weights)), weights, _by_std(cfg))}


def rloo(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    return {"advantages_N": advantages.rloo(batch, advantages.sequence_rewards(batch))}


def opo(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    return {"advantages_N": advantages.opo(batch, advantages.sequence_rewards(batch))}


def gpg(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    return {"advantages_N": advantages.gpg(batch, advantages.sequence_rewards(batch))}


def reinforce_plus_plus(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    return _both(advantages.reinforce_plus_plus(batch, _token_rewards(batch), cfg.gamma))


def reinforce_plus_plus_baseline(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    return {"advantages_N": advantages.reinforce_plus_plus_baseline(batch, advantages.sequence_rewards(batch))}


def remax(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    rows: list[Trajectory] = batch["trajectory_blob"]
    greedy_S = torch.tensor([t.meta["greedy_reward"] for t in rows], dtype=torch.float64)
    return _both(advantages.remax(batch, _token_rewards(batch), greedy_S))


def optimal_token_baseline(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    return _optimal_token(batch, cfg, turns=False)


def tir_optimal_token_baseline(batch: Batch, cfg: AlgorithmConfig) -> Columns:
    return _optimal_token(batch, cfg, turns=True)


def _optimal_token(batch: Batch, cfg: AlgorithmConfig, turns: bool) -> Columns:
    at, weights, weight_M = produced(batch), weights_of(cfg.rollout_correction), None
    if weights is not None and at.M:
        ratio_M = log_ratio(at.pick(batch["old_logp_N"]), at.pick(batch["rollout_logp_N"]))
        weight_M, _ = importance_weights(ratio_M, at, weights)
    logp_N, square_N = batch["old_logp_N"], batch["sum_p_sq_N"]
    return _both(advantages.optimal_token_baseline(batch, _token_rewards(batch), logp_N, square_N, turns, weight_M))


def _both(columns: tuple[Tensor, Tensor]) -> Columns:
    return {"advantages_N": columns[0], "returns_N": columns[1]}


def _by_std(cfg: AlgorithmConfig) -> bool:
    """null outside an effective configuration means the estimator's own definition."""
    return cfg.norm_adv_by_std_in_grpo is not False


def _token_rewards(batch: Batch) -> Tensor:
    return batch["token_reward_N"] if "token_reward_N" in batch else advantages.token_rewards(batch)


def _part(t: Trajectory, key: str) -> float:
    """One of an answer's rewards: `score` (all that counts), `acc`, or another number that the scorer returned. An
    answer that could not be scored has 0 of each."""
    named: dict[str, float | None] = {"score": t.reward, "acc": t.meta.get("acc"), **t.reward_parts}
    if (value := named.get(key)) is not None:
        return value
    if t.meta.get("score_error"):
        return 0.0
    given = ", ".join(sorted(name for name, value in named.items() if value is not None))
    raise RunError(
        f"algorithm.gdpo_reward_keys names {key!r}, which the scorer of {t.meta.get('data_source')} did not return",
        f"it returned {given}",
    )
