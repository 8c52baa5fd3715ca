"""Losses whose gradient is a weight times the policy gradient A grad logp: the weight itself carries no gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_core.algorithms.policy_loss import Losses, Options, Tokens


def gpg(t: Tokens, o: Options) -> Losses:
    """Group policy gradient (arXiv 2504.02546, eq. 6): -A logp, no ratio and no bound; for one update a batch."""
    return -t.adv_M * t.logp_M, {"ppo_kl": -t.log_ratio_M.detach()}


def reinforce(t: Tokens, o: Options) -> Losses:
    """REINFORCE (Williams 1992) with truncated importance sampling: -A min(r, c) logp, r without gradient. On-policy r
    is 1. With rollout.old_log_prob=rollout, r is the policy over the engine: veRL's bypass mode with
    loss_type=reinforce, where c is rollout_is_threshold."""
    log_ratio_M = t.log_ratio_M.detach()
    ratio_M = log_ratio_M.exp()
    loss_M = -t.adv_M * ratio_M.clamp(max=o.c) * t.logp_M
    return loss_M, {"ppo_kl": -log_ratio_M, "pg_clipfrac": (ratio_M > o.c).float()}


def cispo(t: Tokens, o: Options) -> Losses:
    """Clipped importance-sampling policy optimisation (arXiv 2506.13585, eq. 4 and 5): -A clip(r, 1 - low, 1 + high)
    logp. A token out of bounds keeps its gradient, with the bound as weight."""
    log_ratio_M = t.log_ratio_M.detach()
    ratio_M = log_ratio_M.exp()
    held_M = ratio_M.clamp(1 - o.low, 1 + o.high)
    return -t.adv_M * held_M * t.logp_M, {"ppo_kl": -log_ratio_M, "pg_clipfrac": (held_M != ratio_M).float()}


def dppo_tv(t: Tokens, o: Options) -> Losses:
    """Divergence PPO, binary total variation (arXiv 2602.04879): a token is left out once its probability has moved
    with its advantage by more than high (up) or low (down)."""
    moved_M = (t.logp_M.detach().double().exp() - t.old_logp_M.double().exp()).abs()
    return _divergence(t, o, moved_M)


def dppo_kl(t: Tokens, o: Options) -> Losses:
    """Divergence PPO, binary KL (arXiv 2602.04879): as dppo_tv, by the KL of the two-way distributions (this token, any
    other) of old against new policy, nats."""
    p_M, q_M = t.old_logp_M.double().exp(), t.logp_M.detach().double().exp()
    others_M = (1 - p_M) * ((1 - p_M + 1e-8) / (1 - q_M + 1e-8)).log()
    return _divergence(t, o, others_M - p_M * t.log_ratio_M.detach())


def _divergence(t: Tokens, o: Options, divergence_M: Tensor) -> Losses:
    """-A min(r, c) logp where the divergence is within its bound, or the step leads back towards the old policy."""
    log_ratio_M = t.log_ratio_M.detach()
    ratio_M = log_ratio_M.exp()
    up_M = (divergence_M <= o.high) | (log_ratio_M <= 0)
    down_M = (divergence_M <= o.low) | (log_ratio_M >= 0)
    valid_M = torch.where(t.adv_M > 0, up_M, down_M)
    loss_M = torch.where(valid_M, -t.adv_M * ratio_M.clamp(max=o.c) * t.logp_M, 0.0)
    return loss_M, {
        "ppo_kl": -log_ratio_M,
        "pg_clipfrac": (~valid_M).float(),
        "pg_clipfrac_lower": (valid_M & (ratio_M > o.c)).float(),
    }


def dro(t: Tokens, o: Options) -> Losses:
    """Direct reward optimisation on tokens (after arXiv 2405.19107, eq. 6): -(A logp - beta / 2 (logp - old)^2). The
    paper's loss is a square of whole sequences with a learned value; its policy part, with the advantage in place of
    reward less value, has this gradient at the token level, as veRL has it too."""
    log_ratio_M = t.logp_M - t.old_logp_M
    return -(t.adv_M * t.logp_M - 0.5 * o.dro_beta * log_ratio_M.square()), {"ppo_kl": -log_ratio_M.detach()}
