"""Losses of the probability ratio r = exp(logp - old_logp), held in bounds. Diagnostics: ppo_kl (k1 of old against new
policy), pg_clipfrac (the bound won), pg_clipfrac_lower (the bound for negative advantages won)."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_core.algorithms.policy_loss import Losses, Options, Tokens


def clipped_max(ratio_M: Tensor, adv_M: Tensor, o: Options) -> tuple[Tensor, Tensor]:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) [M], and where the clipped side won."""
    plain_M = -adv_M * ratio_M
    held_M = -adv_M * ratio_M.clamp(1 - o.low, 1 + o.high)
    return torch.maximum(plain_M, held_M), held_M > plain_M


def vanilla(t: Tokens, o: Options) -> Losses:
    """PPO's clipped surrogate (arXiv 1707.06347, eq. 7) with DAPO's two bounds (2503.14476, eq. 8) and the dual clip
    (1912.09729, eq. 5): for A < 0 at most -A c."""
    log_ratio_M = t.log_ratio_M
    ppo_M, clipped_M = clipped_max(log_ratio_M.exp(), t.adv_M, o)
    bound_M = -t.adv_M * o.c
    loss_M = torch.where(t.adv_M < 0, torch.minimum(bound_M, ppo_M), ppo_M)
    lower_M = (t.adv_M < 0) & (ppo_M > bound_M)
    return loss_M, _seen(log_ratio_M, clipped_M, lower_M)


def gspo(t: Tokens, o: Options) -> Losses:
    """Group sequence policy optimisation, its token form (arXiv 2507.18071, eq. 13 and 14): the ratio is the geometric
    mean of the sequence's, its gradient the token's own. With one advantage a sequence it is the sequence form, eq. 5.

    veRL caps the exponent at 10 above only; here it is within +-20, as everywhere.
    """
    log_ratio_M = t.log_ratio_M
    sequence_M = t.mean_M(log_ratio_M.detach()).exp()
    ratio_M = sequence_M * (t.logp_M - t.logp_M.detach()).exp()
    loss_M, clipped_M = clipped_max(ratio_M, t.adv_M, o)
    return loss_M, _seen(log_ratio_M, clipped_M)


def gmpo(t: Tokens, o: Options) -> Losses:
    """Geometric-mean policy optimisation (arXiv 2507.20673, eq. 4): -A times the geometric mean of the sequence's token
    ratios, each held below e^high for A > 0 and above e^-low for A < 0; A is the sequence's mean.

    The sequence's loss stands on each of its tokens, so that seq-mean-token-mean is the paper's mean over sequences.
    veRL (geo_mean) takes that mean in each micro-batch, whatever the aggregation says, so its loss depends on the
    split.
    """
    log_ratio_M, sign_M = t.log_ratio_M, t.adv_M.sign()
    held_M = log_ratio_M.clamp(-o.low, o.high)
    pessimist_M = sign_M * torch.minimum(sign_M * log_ratio_M, sign_M * held_M)
    loss_M = -t.mean_M(t.adv_M) * t.mean_M(pessimist_M).exp()
    outside_M = log_ratio_M != held_M
    return loss_M, _seen(log_ratio_M, outside_M & (t.adv_M > 0), outside_M & (t.adv_M < 0))


def sapo(t: Tokens, o: Options) -> Losses:
    """Soft adaptive policy optimisation (arXiv 2511.20347, eq. 5 and 6): -A (4 / tau) sigmoid(tau (r - 1)), tau by the
    advantage's sign. veRL aggregates by seq-mean-token-mean whatever is configured; here that is the preset's choice.
    """
    log_ratio_M = t.log_ratio_M
    tau_M = torch.full_like(log_ratio_M, o.tau_neg).masked_fill(t.adv_M > 0, o.tau_pos)
    gate_M = torch.sigmoid(tau_M * log_ratio_M.expm1()) * 4 / tau_M
    return -t.adv_M * gate_M, {"ppo_kl": -log_ratio_M}


def _seen(log_ratio_M: Tensor, clipped_M: Tensor, lower_M: Tensor | None = None) -> dict[str, Tensor]:
    seen = {"ppo_kl": -log_ratio_M, "pg_clipfrac": clipped_M.float()}
    return seen if lower_M is None else seen | {"pg_clipfrac_lower": lower_M.float()}
