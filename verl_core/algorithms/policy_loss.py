"""Policy losses: functions of log-probs and advantages on produced tokens, before aggregation. The catalogue holds them
by name; a plug-in adds its own with `register("policy_loss", NAME, where="module:function")`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Clip:
    """Bounds of the probability ratio: 1 - low, 1 + high, and c for negative advantages."""

    low: float = 0.2
    high: float = 0.2
    c: float = 3.0


# (logp_M, old_logp_M, advantages_M, clip) -> (loss_M, diagnostics of shape [M], logged as means under actor/)
PolicyLossFn = Callable[[Tensor, Tensor, Tensor, Clip], tuple[Tensor, dict[str, Tensor]]]


def vanilla(logp_M: Tensor, old_logp_M: Tensor, adv_M: Tensor, clip: Clip) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped surrogate (arXiv 1707.06347) with asymmetric bounds (arXiv 2503.14476) and dual clip (1912.09729).

    With ratio r = exp(logp - old_logp), the exponent clamped to +-20: max(-A r, -A clip(r, 1 - low, 1 + high)), and for
    A < 0 at most -A c. Diagnostics: ppo_kl (k1 of old against new policy), pg_clipfrac (the clipped side won),
    pg_clipfrac_lower (the dual clip won).
    """
    log_ratio_M = (logp_M - old_logp_M).clamp(-20, 20)
    ratio_M = log_ratio_M.exp()
    plain_M = -adv_M * ratio_M
    clipped_M = -adv_M * ratio_M.clamp(1 - clip.low, 1 + clip.high)
    ppo_M = torch.maximum(plain_M, clipped_M)
    bound_M = -adv_M * clip.c
    loss_M = torch.where(adv_M < 0, torch.minimum(bound_M, ppo_M), ppo_M)
    diagnostics = {
        "ppo_kl": -log_ratio_M,
        "pg_clipfrac": (clipped_M > plain_M).float(),
        "pg_clipfrac_lower": ((adv_M < 0) & (ppo_M > bound_M)).float(),
    }
    return loss_M, diagnostics
