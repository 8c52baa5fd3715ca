"""The axis M: only the tokens the model produced (mask 1), in the order of the batch.

Losses and advantages are computed on this axis and never see what lies under mask 0, so a NaN or inf there (padding,
tool text, an engine's placeholder) reaches neither a value nor, as 0 x NaN would, a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from verl_core.batch import Batch


@dataclass(frozen=True)
class Produced:
    """Where the M produced tokens of a batch are."""

    index_M: Tensor  # position on the N axis
    seq_M: Tensor  # sequence each belongs to, ascending
    count_S: Tensor  # produced tokens of each sequence, int64

    @property
    def M(self) -> int:
        return len(self.index_M)

    def pick(self, value_N: Tensor) -> Tensor:
        """[N] to [M]; the column itself, not a copy, where everything is produced."""
        if len(value_N) == self.M:
            return value_N
        return value_N.index_select(0, self.index_M)  # three times as fast as value_N[index_M]

    def spread(self, value_M: Tensor, N: int) -> Tensor:
        """[M] to [N], 0 under mask 0, in memory of its own (safe to write into)."""
        return value_M.new_zeros(N).index_copy_(0, self.index_M, value_M)

    def per_sequence(self, value_M: Tensor, how: Literal["sum", "max"] = "sum") -> Tensor:
        """Each sequence's sum (0 where it produced nothing) or largest value (-inf), [S]. Unlike with index_add the
        order of the sum repeats on a GPU as well."""
        if not len(self.count_S):
            return value_M[:0]
        empty = 0.0 if how == "sum" else -torch.inf
        return torch.segment_reduce(value_M, how, lengths=self.count_S, initial=empty)

    @property
    def last_M(self) -> Tensor:
        """True at each sequence's last produced token. Shape [M]."""
        return self.seq_M != torch.cat([self.seq_M[1:], self.seq_M.new_full((1,), -1)])[: self.M]


def produced(batch: Batch) -> Produced:
    """The produced tokens of a batch, by its column mask_N."""
    index_M = batch["mask_N"].nonzero()[:, 0]
    seq_M = batch.seq_N.index_select(0, index_M)
    return Produced(index_M, seq_M, torch.bincount(seq_M, minlength=batch.S))
