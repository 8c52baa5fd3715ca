"""Estimators from the rewards to come, without a critic."""

from __future__ import annotations

from torch import Tensor

from verl_core.algorithms.advantages.group import centred, on_tokens, whitened
from verl_core.algorithms.advantages.scan import discounted_sum, whiten
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch


def reinforce_plus_plus(batch: Batch, token_reward_N: Tensor, gamma: float = 1.0) -> tuple[Tensor, Tensor]:
    """REINFORCE++ (arXiv 2501.03262): returns G_t = r_t + gamma G_{t+1} over produced tokens, whitened over the batch.

    Returns advantages_N and returns_N.
    """
    at = produced(batch)
    return_M = discounted_sum(at.pick(token_reward_N).double(), at, gamma)
    return at.spread(whiten(return_M).float(), batch.N), at.spread(return_M.float(), batch.N)


def reinforce_plus_plus_baseline(batch: Batch, reward_S: Tensor) -> Tensor:
    """REINFORCE++-baseline (arXiv 2501.03262): reward less the group's mean on every produced token, whitened over the
    batch's tokens. Groups of one stand at the mean. Shape [N]."""
    return on_tokens(batch, whitened(batch, centred(batch, reward_S)))


def remax(batch: Batch, token_reward_N: Tensor, greedy_reward_S: Tensor) -> tuple[Tensor, Tensor]:
    """ReMax (arXiv 2310.10505): the rewards to come less the reward of the greedy answer to the same prompt.

    greedy_reward_S: [S], the same for all answers to a prompt. Returns advantages_N and returns_N.
    """
    at = produced(batch)
    return_M = discounted_sum(at.pick(token_reward_N).double(), at, 1.0)
    adv_M = return_M - greedy_reward_S.double()[at.seq_M]
    return at.spread(adv_M.float(), batch.N), at.spread(return_M.float(), batch.N)
