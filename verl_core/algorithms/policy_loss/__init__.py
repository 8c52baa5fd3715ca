"""Policy losses: functions from produced tokens to the loss of each, before aggregation. The catalogue holds them by
name; a plug-in or a user's file adds its own with `register("policy_loss", NAME)`.

`clipped.py`: a ratio held in bounds (PPO, DAPO, GSPO, GMPO, SAPO). `weighted.py`: log-probs times a weight without
gradient (REINFORCE, GPG, CISPO, DPPO, DRO). `covariance.py`: Clip-Cov and KL-Cov.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_core.algorithms.produced import Produced

SAFE = 20.0  # nats; bounds every exponent, e^20 is 5e8


@dataclass(frozen=True)
class Options:
    """The numbers of the policy losses, from the configuration; each loss reads its own."""

    low: float = 0.2  # actor.clip_ratio_low
    high: float = 0.2  # actor.clip_ratio_high
    c: float = 3.0  # actor.clip_ratio_c
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    clip_cov_ratio: float = 0.0002
    clip_cov_lb: float = 1.0
    clip_cov_ub: float = 5.0
    kl_cov_ratio: float = 0.0002
    ppo_kl_coef: float = 0.1
    dro_beta: float = 1.0


@dataclass(frozen=True)
class Tokens:
    """What a policy loss sees: the produced tokens of a micro-batch that count."""

    logp_M: Tensor  # under the policy that learns, with gradient
    old_logp_M: Tensor  # under the policy that sampled
    adv_M: Tensor  # advantages
    at: Produced  # which sequence each token belongs to
    selected_M: Tensor | None = None  # bool; the tokens that covariance.py picked from the whole mini-batch

    @property
    def log_ratio_M(self) -> Tensor:
        """logp - old_logp, clamped to +-20."""
        return (self.logp_M - self.old_logp_M).clamp(-SAFE, SAFE)

    def mean_M(self, value_M: Tensor) -> Tensor:
        """On each token the mean over its sequence."""
        return (self.at.per_sequence(value_M) / self.at.count_S.clamp(min=1))[self.at.seq_M]

    def only(self, index_K: Tensor) -> Tokens:
        """These tokens alone: a sequence's means are then over those of it that are left."""
        at, chosen_M = self.at, self.selected_M
        seq_K = at.seq_M[index_K]
        left = Produced(at.index_M[index_K], seq_K, torch.bincount(seq_K, minlength=len(at.count_S)))
        chosen_K = None if chosen_M is None else chosen_M[index_K]
        return Tokens(self.logp_M[index_K], self.old_logp_M[index_K], self.adv_M[index_K], left, chosen_K)


Losses = tuple[Tensor, dict[str, Tensor]]
PolicyLossFn = Callable[[Tokens, Options], Losses]
"""-> (loss_M, diagnostics of shape [M], logged as means under actor/)."""
