"""On-policy distillation: the student learns on its own answers to be as likely to write them as a teacher is.

Reverse KL from the sampled tokens (arXiv 2306.13649, 2306.08543; https://thinkingmachines.ai/blog/on-policy-distillation)
or forward KL on the teacher's likeliest tokens. Student and teacher are taken at the same temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from verl_core.algorithms.aggregate import aggregate
from verl_core.algorithms.kl import kl_estimate
from verl_core.algorithms.loss import Metric, Need, Totals, mean_of
from verl_core.algorithms.losses import PolicyLoss
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch
from verl_core.config.schema import DistillationConfig, RlxConfig
from verl_core.config.schema_distillation import FORWARD_TOPK

TAIL_FLOOR = 1e-5  # float32 knows a remainder of 1 no better


def sampled_kl(logp: Tensor, teacher_logp: Tensor, how: DistillationConfig) -> Tensor:
    """The estimate `loss_mode` of KL(student, teacher) for each sampled token, in nats, with both clamps. Any shape."""
    floor = how.log_prob_min_clamp
    if floor is not None:
        logp, teacher_logp = logp.clamp(min=floor), teacher_logp.clamp(min=floor)
    return _bounded(kl_estimate(how.loss_mode, logp, teacher_logp), how.loss_max_clamp)


def forward_kl_topk(logp_MK: Tensor, teacher_logp_MK: Tensor) -> Tensor:
    """KL(teacher, student) [M] in nats over the teacher's K likeliest tokens and the rest of the vocabulary as one:
    sum_k p_k (log p_k - log q_k) + P (log P - log Q), P = 1 - sum p_k and Q = 1 - sum q_k. So, but for
    TAIL_FLOOR, it is never negative, 0 only where the student agrees on all K, and a lower bound of the whole KL. A
    token that the teacher excludes (-inf) counts among the rest."""
    excluded_MK = teacher_logp_MK == -torch.inf
    logp_MK = logp_MK.masked_fill(excluded_MK, -torch.inf)
    gap_MK = torch.where(excluded_MK, 0.0, teacher_logp_MK - logp_MK)
    tail_M, teacher_tail_M = _tail(logp_MK), _tail(teacher_logp_MK)
    rest_M = teacher_tail_M * (teacher_tail_M.log() - tail_M.log())
    return (teacher_logp_MK.exp() * gap_MK).sum(-1) + rest_M


def distilled_advantage(batch: Batch, how: DistillationConfig) -> Tensor:
    """`coef` times what the estimate says against each token, as an advantage: of k1 this is log p_teacher - log
    p_student under the weights that sampled. Reads old_logp_N, teacher_logp_N, mask_N. Shape [N], float32."""
    at = produced(batch)
    kl_M = sampled_kl(at.pick(batch["old_logp_N"]).double(), at.pick(batch["teacher_logp_N"]).double(), how)
    return at.spread((-how.coef * kl_M).float(), batch.N)


def teacher_metrics(batch: Batch) -> dict[str, float]:
    """How far the student is from its teachers, over the produced tokens; nothing where there are none."""
    at = produced(batch)
    if not at.M:
        return {}
    if "teacher_topk_logp_NK" in batch:
        mass_M = at.pick(batch["teacher_topk_logp_NK"]).exp().sum(-1)
        return {"distillation/topk_mass": float(mass_M.double().mean())}
    teacher_M = at.pick(batch["teacher_logp_N"]).double()
    return {
        "distillation/teacher_logp": float(teacher_M.mean()),
        "distillation/reverse_kl": float((at.pick(batch["old_logp_N"]) - teacher_M).mean()),
    }


@dataclass(frozen=True)
class DistillationLoss(PolicyLoss):
    """The policy loss and `coef` times the KL to the teacher, aggregated alike. Reads teacher_logp_N, for the forward
    KL teacher_ids_NK and teacher_topk_logp_NK in its place, beside the policy loss's columns."""

    how: DistillationConfig | None = None

    @classmethod
    def of(cls, config: RlxConfig) -> Self:
        """From an effective configuration."""
        return replace(cls.from_config(config.actor, config.rollout.temperature), how=config.distillation)

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | ({Need.GIVEN} if self.topk else frozenset())

    @property
    def topk(self) -> bool:
        return self.how is not None and self.how.loss_mode == FORWARD_TOPK

    def __call__(self, out: Mapping[Need, Tensor], batch: Batch, totals: Totals) -> tuple[Tensor, dict[str, Metric]]:
        assert self.how is not None
        loss, metrics = super().__call__(out, batch, totals)
        at = produced(batch)
        if self.topk:
            kl_M = forward_kl_topk(at.pick(out[Need.GIVEN]), at.pick(batch["teacher_topk_logp_NK"]))
            kl_M = _bounded(kl_M, self.how.loss_max_clamp)
        else:
            kl_M = sampled_kl(at.pick(out[Need.LOGP]), at.pick(batch["teacher_logp_N"]), self.how)
        kl = aggregate(kl_M, at, totals, self.agg_mode, self.scale)
        return loss + self.how.coef * kl, metrics | {"distillation/loss": mean_of(kl_M)}


def _bounded(value: Tensor, most: float | None) -> Tensor:
    return value if most is None else value.clamp(-most, most)


def _tail(logp_MK: Tensor) -> Tensor:
    """What K tokens leave to all others, no less than TAIL_FLOOR."""
    return (1 - logp_MK.exp().sum(-1)).clamp(min=TAIL_FLOOR)
