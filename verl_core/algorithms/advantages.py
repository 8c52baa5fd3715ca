"""Advantage estimators: pure functions from rewards (and values) on a Batch to per-token advantages.

All arithmetic is float64 inside and float32 in the columns, so equal rewards give advantages of exactly 0 and nearly
equal ones are not drowned in rounding. Under mask 0 every column is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verl_core.algorithms.produced import Produced, produced
from verl_core.batch import Batch
from verl_core.config import catalogue
from verl_core.config.schema import AlgorithmConfig


def token_rewards(batch: Batch, kl_coef: float = 0.0, kl_N: Tensor | None = None) -> Tensor:
    """reward_S on each sequence's last produced token, less kl_coef * kl_N on every one. Shape [N], float32."""
    at = produced(batch)
    reward_M = torch.where(at.last_M, batch["reward_S"].double()[at.seq_M], 0.0)
    if kl_N is not None:
        reward_M = reward_M - kl_coef * at.pick(kl_N).double()
    return at.spread(reward_M.float(), batch.N)


def sequence_rewards(batch: Batch) -> Tensor:
    """Each sequence's reward less its KL penalty: the sum of token_reward_N, or reward_S where that column is missing
    or the sequence produced nothing. Shape [S], float64."""
    reward_S = batch["reward_S"].double()
    if "token_reward_N" not in batch:
        return reward_S
    at = produced(batch)
    total_S = torch.zeros_like(reward_S).index_add(0, at.seq_M, at.pick(batch["token_reward_N"]).double())
    return torch.where(at.count_S > 0, total_S, reward_S)


def gae(
    batch: Batch, token_reward_N: Tensor, values_N: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438): advantages_N whitened over the batch, and returns_N.

    delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lam A_{t+1}; return = A + V before whitening. Tokens
    under mask 0 (tool text) are stepped over: t+1 is the next produced token. Beyond the last one V and A are 0.
    """
    at = produced(batch)
    value_M = at.pick(values_N).double()
    next_M = torch.where(at.last_M, 0.0, value_M.roll(-1))
    delta_M = at.pick(token_reward_N).double() + gamma * next_M - value_M
    adv_M = discounted_sum(delta_M, at, gamma * lam)
    return at.spread(whiten(adv_M).float(), batch.N), at.spread((adv_M + value_M).float(), batch.N)


def grpo(batch: Batch, reward_S: Tensor, norm_by_std: bool = True) -> Tensor:
    """(r - mean) / (std + 1e-6) within the group of answers to one prompt (arXiv 2402.03300), on every produced token.

    std is unbiased. norm_by_std=False leaves out the division (Dr. GRPO, arXiv 2503.20783). A group of one has nothing
    to be compared with: advantage 0. Shape [N].
    """
    centred_S, count_S = _centred(batch, reward_S)
    if norm_by_std:
        square_P = centred_S.new_zeros(batch.P).index_add(0, batch.group_S, centred_S.square())
        std_S = (square_P[batch.group_S] / (count_S - 1).clamp(min=1)).sqrt()
        centred_S = centred_S / (std_S + 1e-6)
    return _on_tokens(batch, centred_S)


def rloo(batch: Batch, reward_S: Tensor) -> Tensor:
    """Reward less the mean of the group's other answers (arXiv 2402.14740): n/(n-1) (r - mean), on every produced
    token. A group of one has no other answers: advantage 0. Shape [N].
    """
    centred_S, count_S = _centred(batch, reward_S)
    return _on_tokens(batch, centred_S * count_S / (count_S - 1).clamp(min=1))


def reinforce_plus_plus(batch: Batch, token_reward_N: Tensor, gamma: float = 1.0) -> tuple[Tensor, Tensor]:
    """REINFORCE++ (arXiv 2501.03262): returns G_t = r_t + gamma G_{t+1} over produced tokens, whitened over the batch.

    Returns advantages_N and returns_N.
    """
    at = produced(batch)
    return_M = discounted_sum(at.pick(token_reward_N).double(), at, gamma)
    return at.spread(whiten(return_M).float(), batch.N), at.spread(return_M.float(), batch.N)


def compute_advantage(name: str, batch: Batch, cfg: AlgorithmConfig) -> Batch:
    """Adds the columns of an advantage estimator, built-in (`estimators.py`) or from a plug-in, and returns the batch.

    Reads mask_N and reward_S, token_reward_N where present (`token_rewards` makes it), and values_N for gae. Adds
    advantages_N, and returns_N where the estimator defines returns. Raises UserError for an unknown name.
    """
    return batch.add(**catalogue.implementation("advantage", name)(batch, cfg))


def discounted_sum(value_M: Tensor, at: Produced, decay: float) -> Tensor:
    """y_t = value_t + decay * y_{t+1} within each sequence. Shape [M].

    After pass k every y holds 2^k terms, so log2(longest) passes over the whole batch replace a loop over tokens.
    """
    out_M = value_M.clone()
    longest = int(at.count_S.max()) if at.M else 0
    step = 1
    while step < longest:
        same_M = at.seq_M[step:] == at.seq_M[:-step]
        out_M[:-step] += decay**step * torch.where(same_M, out_M[step:], 0.0)
        step *= 2
    return out_M


def whiten(value_M: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8), var unbiased; one value alone becomes 0."""
    if len(value_M) == 0:
        return value_M
    centred_M = value_M - value_M.mean()
    var = centred_M.square().sum() / max(len(value_M) - 1, 1)
    return centred_M / (var + 1e-8).sqrt()


def _centred(batch: Batch, reward_S: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards less their group's mean, float64, and the size of each sequence's group."""
    reward_S = reward_S.double()
    count_P = torch.bincount(batch.group_S, minlength=batch.P)
    mean_P = reward_S.new_zeros(batch.P).index_add(0, batch.group_S, reward_S) / count_P
    return reward_S - mean_P[batch.group_S], count_P[batch.group_S]


def _on_tokens(batch: Batch, adv_S: Tensor) -> Tensor:
    return torch.where(batch["mask_N"], adv_S.float()[batch.seq_N], 0.0)
