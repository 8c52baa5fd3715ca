"""The border between algorithms and training engines: a loss declares the per-token quantities it needs and is handed
exactly those, packed; it never sees logits. So vocabulary-parallel, pipeline and fused back ends serve every loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

import torch
from torch import Tensor

from verl_core.batch import Batch


class Need(StrEnum):
    """A per-token quantity an engine can compute. Entry i speaks of token i given the tokens before it in its sequence
    (so entry i comes from the hidden state at i-1); entries outside mask_N are 0."""

    LOGP = "logp_N"  # log-prob of ids_N at the loss's temperature
    ENTROPY = "entropy_N"  # entropy of the distribution token i was drawn from, nats
    SUM_P_SQ = "sum_p_sq_N"  # sum of the squared probabilities of that distribution; carries no gradient
    VALUES = "values_N"  # the value head's output before token i is produced
    TOPK_IDS = "topk_ids_NK"  # the k likeliest tokens of that distribution, likeliest first; int32, no gradient
    TOPK_LOGP = "topk_logp_NK"  # their log-probs; no gradient
    GIVEN = "given_logp_NK"  # log-probs of the tokens in teacher_ids_NK, which the batch brings
    FULL_KL = "full_kl_N"  # KL(that distribution, the reference's), over the whole vocabulary, nats
    HIDDEN = "hidden_ND"  # what the output layer makes that distribution from, in the dtype of computing; no gradient


@dataclass(frozen=True)
class Totals:
    """Counts over the whole mini-batch on all ranks: what a loss divides by, so that its gradient does not depend on
    how the mini-batch is split into micro-batches and ranks."""

    tokens: int  # tokens with mask 1
    sequences: int  # sequences with at least one token with mask 1
    groups: int = 0  # groups with at least one such sequence

    @classmethod
    def of(cls, batch: Batch) -> Totals:
        """The counts of a whole mini-batch (not of one rank's share)."""
        count_S = batch.sum_S(batch["mask_N"])
        groups = len(batch.group_S[count_S > 0].unique())
        return cls(tokens=int(count_S.sum()), sequences=int((count_S > 0).sum()), groups=groups)


@dataclass(frozen=True)
class Metric:
    """One logged number as a part of a whole: parts from micro-batches and ranks are joined exactly.

    mean: sum(value) / sum(weight); sum: sum(value); max, min: of value (weight unused).
    """

    value: Tensor | float
    weight: Tensor | float = 1.0
    how: Literal["mean", "sum", "max", "min"] = "mean"


def mean_of(value_M: Tensor) -> Metric:
    """Mean over these values, of this micro-batch's part."""
    return Metric(value_M.detach().sum(), weight=len(value_M))


def largest_of(value_M: Tensor) -> Metric:
    """Largest of numbers >= 0; 0 when there is none, so that every part of a mini-batch has the metric."""
    return Metric(torch.cat([value_M, value_M.new_zeros(1)]).max(), how="max")


class Loss(Protocol):
    """Picklable (it travels to the ranks). `temperature` scales the logits before every quantity is taken. One that
    compares the sequences of a group says so by a `whole_groups` that is true (`keeps_groups`)."""

    @property
    def needs(self) -> frozenset[Need]: ...

    @property
    def temperature(self) -> float: ...

    def __call__(self, out: Mapping[Need, Tensor], batch: Batch, totals: Totals) -> tuple[Tensor, dict[str, Metric]]:
        """This micro-batch's share of the mini-batch loss (a scalar; shares of all micro-batches and ranks add up to
        the loss) and its metrics by name. `batch` lies on the device of `out`."""
        ...


def keeps_groups(loss: Loss) -> bool:
    """Whether all sequences of a group have to be in one micro-batch, and so on one rank."""
    return bool(getattr(loss, "whole_groups", False))
