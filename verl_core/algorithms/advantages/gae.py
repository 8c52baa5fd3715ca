"""Generalised advantage estimation from a critic's values, and VAPO's form of it."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_core.algorithms.advantages.scan import discounted_sum, whiten
from verl_core.algorithms.produced import Produced, produced
from verl_core.batch import Batch


def gae(
    batch: Batch, token_reward_N: Tensor, values_N: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438, eq. 16): advantages_N whitened over the batch, returns_N.

    delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lam A_{t+1}; return = A + V before whitening. Tokens
    under mask 0 (tool text) are stepped over: t+1 is the next produced token. Beyond the last one V and A are 0.
    """
    return decoupled_gae(batch, token_reward_N, values_N, gamma, lam, lam)


def decoupled_gae(
    batch: Batch,
    token_reward_N: Tensor,
    values_N: Tensor,
    gamma: float = 1.0,
    lam: float = 0.95,
    lam_critic: float = 1.0,
    lam_alpha: float | None = None,
) -> tuple[Tensor, Tensor]:
    """GAE with one lambda for the policy's advantages_N and another for the critic's returns_N (VC-PPO, arXiv
    2503.01491; VAPO, arXiv 2504.05118).

    lam_alpha makes the policy's lambda follow the length l of each answer, in produced tokens: 1 - 1 / (lam_alpha l)
    (VAPO, section 4.2, which takes 0.05), 0 where that is negative; `lam` is then not read. Whitened as `gae` is.
    """
    at = produced(batch)
    value_M = at.pick(values_N).double()
    next_M = torch.where(at.last_M, 0.0, value_M.roll(-1))
    delta_M = at.pick(token_reward_N).double() + gamma * next_M - value_M
    policy = lam if lam_alpha is None else length_adaptive_lam(at, lam_alpha)
    adv_M = discounted_sum(delta_M, at, gamma * policy)
    critic_M = adv_M if lam_alpha is None and lam == lam_critic else discounted_sum(delta_M, at, gamma * lam_critic)
    return at.spread(whiten(adv_M).float(), batch.N), at.spread((critic_M + value_M).float(), batch.N)


def length_adaptive_lam(at: Produced, alpha: float) -> Tensor:
    """1 - 1 / (alpha l), at least 0, for sequences of l produced tokens. Shape [S], float64."""
    return (1 - 1 / (alpha * at.count_S.clamp(min=1).double())).clamp(min=0)
