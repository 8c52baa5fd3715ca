"""Clip-Cov and KL-Cov (arXiv 2505.22617, section 4): against the collapse of entropy they hold back the few tokens with
the largest covariance of log-prob and advantage, (logp - mean) (A - mean) (eq. 10).

Which tokens these are is a matter of the whole mini-batch: `SELECTIONS` decides it before the mini-batch is split, so
it is the same for every number of micro-batches and ranks. It reads the log-probs that sampled, which in the first
optimizer step of a batch are the policy's own. veRL decides in each micro-batch, with the present log-probs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from verl_core.algorithms.policy_loss import Losses, Options, Tokens
from verl_core.algorithms.policy_loss.clipped import clipped_max


def covariance(logp_M: Tensor, adv_M: Tensor) -> Tensor:
    """Each token's part of the covariance, float64 [M]."""
    logp_M, adv_M = logp_M.double(), adv_M.double()
    return (logp_M - logp_M.mean()) * (adv_M - adv_M.mean())


def select_clip_cov(logp_M: Tensor, adv_M: Tensor, o: Options, seed: int) -> Tensor:
    """clip_cov_ratio of all tokens (rounded down, at least one), drawn among those with a covariance between
    clip_cov_lb and clip_cov_ub (eq. 11). Positions of the chosen; fewer where there are not so many."""
    value_M = covariance(logp_M, adv_M)
    among = ((value_M > o.clip_cov_lb) & (value_M < o.clip_cov_ub)).nonzero()[:, 0]
    order = torch.randperm(len(among), generator=torch.Generator().manual_seed(seed))
    return among[order[: _count(o.clip_cov_ratio, logp_M)]]


def select_kl_cov(logp_M: Tensor, adv_M: Tensor, o: Options, seed: int) -> Tensor:
    """The kl_cov_ratio of all tokens (rounded down, at least one) with the largest covariance (eq. 13)."""
    return covariance(logp_M, adv_M).topk(_count(o.kl_cov_ratio, logp_M)).indices


def _count(share: float, logp_M: Tensor) -> int:
    return min(max(int(share * len(logp_M)), 1), len(logp_M))


SELECTIONS: dict[str, Callable[[Tensor, Tensor, Options, int], Tensor]] = {
    "clip_cov": select_clip_cov,
    "kl_cov": select_kl_cov,
}
"""policy loss -> (old_logp_M, adv_M, options, seed) -> positions of the tokens of a whole mini-batch it holds back."""


def clip_cov(t: Tokens, o: Options) -> Losses:
    """PPO's clipped surrogate without the chosen tokens, which train nothing (eq. 12)."""
    log_ratio_M = t.log_ratio_M
    ppo_M, clipped_M = clipped_max(log_ratio_M.exp(), t.adv_M, o)
    chosen_M = _chosen(t)
    held_M = (clipped_M | chosen_M).float()
    return torch.where(chosen_M, 0.0, ppo_M), {"ppo_kl": -log_ratio_M, "pg_clipfrac": held_M}


def kl_cov(t: Tokens, o: Options) -> Losses:
    """-A r, and on the chosen tokens ppo_kl_coef |logp - old| on top (eq. 14, its KL estimated as the authors' code and
    veRL do)."""
    log_ratio_M = t.log_ratio_M
    loss_M, chosen_M = -t.adv_M * log_ratio_M.exp(), _chosen(t)
    penalty_M = torch.where(chosen_M, o.ppo_kl_coef * log_ratio_M.abs(), 0.0)
    return loss_M + penalty_M, {"ppo_kl": -log_ratio_M, "pg_clipfrac": chosen_M.float()}


def _chosen(t: Tokens) -> Tensor:
    if t.selected_M is None:
        raise ValueError("the mini-batch was not marked: PolicyLoss.mark picks the tokens before it is split")
    return t.selected_M
