"""PRIME (arXiv 2502.01456): a language model trained online on outcomes alone is a reward model of every token.

Its process reward of a token is r_t = beta (log p_t - log q_t), p the reward model's probability and q that of the
weights it started from; what it says of a whole answer is sigmoid(sum_t r_t), the chance that the outcome is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from verl_core.algorithms.advantages.group import centred, group_size, rloo
from verl_core.algorithms.advantages.scan import discounted_sum
from verl_core.algorithms.loss import Metric, Need, Totals
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch
from verl_core.config.schema import PrimeConfig


def prime_advantage(
    batch: Batch, process_reward_N: Tensor, outcome_S: Tensor, how: PrimeConfig
) -> tuple[Tensor, Tensor]:
    """A_t = process_coef * sum_{s>=t} gamma^{s-t} (r_s - b) + outcome_coef * (o - mean of the others' o), b being the
    mean over the group's other answers of each one's mean process reward (equation 5 of the paper). An answer alone in
    its group has b = 0 and no outcome term. outcome_S: [S]. Returns advantages_N and returns_N, float32 [N], which are
    the same."""
    at = produced(batch)
    reward_M = at.pick(process_reward_N).double()
    mean_S = at.per_sequence(reward_M) / at.count_S.clamp(min=1)
    step_M = reward_M - others_mean(batch, mean_S)[at.seq_M]
    outcome_M = at.pick(rloo(batch, outcome_S)).double()
    adv_M = how.process_coef * discounted_sum(step_M, at, how.gamma) + how.outcome_coef * outcome_M
    adv_N = at.spread(adv_M.float(), batch.N)
    return adv_N, adv_N


def others_mean(batch: Batch, value_S: Tensor) -> Tensor:
    """The mean over the other answers of the group; 0 where there are none. Shape [S]."""
    count_S = group_size(batch)
    others_S = value_S - centred(batch, value_S) * count_S / (count_S - 1).clamp(min=1)
    return torch.where(count_S > 1, others_S, 0.0)


def within_band(batch: Batch, accuracy_S: Tensor, lower: float, upper: float) -> Tensor:
    """The sequences of groups whose mean accuracy is in [lower, upper] (online prompt filtering). Shape [S], bool."""
    total_P = torch.zeros(batch.P, dtype=torch.float64).index_add(0, batch.group_S, accuracy_S.double())
    mean_S = total_P[batch.group_S] / group_size(batch)
    return (mean_S >= lower) & (mean_S <= upper)


@dataclass(frozen=True)
class ImplicitRewardLoss:
    """The reward model's loss: cross entropy of sigmoid(sum_t r_t) against the outcome, mean over the sequences with a
    produced token. Reads reward_ref_logp_N, outcome_S (in [0, 1]) and mask_N."""

    beta: float
    temperature: float = 1.0
    needs: frozenset[Need] = frozenset({Need.LOGP})

    def __call__(self, out: Mapping[Need, Tensor], batch: Batch, totals: Totals) -> tuple[Tensor, dict[str, Metric]]:
        at = produced(batch)
        log_ratio_M = at.pick(out[Need.LOGP]) - at.pick(batch["reward_ref_logp_N"])
        counts = (at.count_S > 0).nonzero()[:, 0]
        logit_K = self.beta * at.per_sequence(log_ratio_M)[counts]
        outcome_K = batch["outcome_S"].to(logit_K.dtype)[counts]
        loss = F.binary_cross_entropy_with_logits(logit_K, outcome_K, reduction="sum") / max(totals.sequences, 1)
        right = ((logit_K > 0) == (outcome_K > 0.5)).float().sum()
        return loss, {"reward_model/accuracy": Metric(right, weight=len(counts))}
