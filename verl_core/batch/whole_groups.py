"""Groups that must not be cut: a loss that compares the sequences of a group needs all of them in one micro-batch, and
so on one rank. What deals and cuts sequences elsewhere does so here with groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_core.batch.batch import Batch
from verl_core.batch.packing import balance, check_fits, micro_batches


@dataclass(frozen=True)
class WholeGroups:
    """The groups of a batch, in the order of their number."""

    members: list[list[int]]
    """Sequences of each group, ascending."""
    tokens: list[int]
    """Tokens of each group's row; what its sequences share (shared_len_S) counts once."""
    length: list[int]
    """Tokens of each sequence."""

    @classmethod
    def of(cls, batch: Batch) -> WholeGroups:
        members = members_of(batch.group_S)
        length = batch.length_S.tolist()
        shared = batch["shared_len_S"].tolist() if "shared_len_S" in batch else [0] * batch.S
        tokens = [sum(length[s] for s in own) - shared[own[0]] * (len(own) - 1) for own in members]
        return cls(members, tokens, length)

    def cut(self, sequences: int | None = None, tokens: int | None = None, ranks: int = 1) -> list[list[int]]:
        """Micro-batches as lists of groups, by the rules of `packing.micro_batches`; a group that is larger than a
        micro-batch may be is one of its own. Raises UserError when a sequence alone is longer than the budget."""
        if tokens is None:
            assert sequences is not None
            return self._by_count(sequences * ranks)
        check_fits(self.length, tokens, ranks)
        size = [min(size, tokens * ranks) for size in self.tokens]
        return micro_batches(size, None, tokens, ranks)

    def _by_count(self, sequences: int) -> list[list[int]]:
        """Consecutive groups of at most so many sequences together."""
        cuts: list[list[int]] = []
        room = 0
        for g, own in enumerate(self.members):
            if not cuts or room < len(own):
                cuts.append([])
                room = sequences
            cuts[-1].append(g)
            room -= len(own)
        return cuts

    def sequences(self, groups: Sequence[int]) -> list[int]:
        """The sequences of these groups, ascending."""
        return sorted(s for g in groups for s in self.members[g])


def deal_whole_groups(cost_S: Tensor, group_S: Tensor, ranks: int) -> list[list[int]]:
    """`packing.balance` by groups: `ranks` lists of sequence indices, ascending in each."""
    members = members_of(group_S)
    cost = [float(cost_S[own].sum()) for own in members]
    return [sorted(s for g in share for s in members[g]) for share in balance(cost, ranks)]


def members_of(group_S: Tensor) -> list[list[int]]:
    """The sequences of each group, ascending; groups in the order of their number."""
    order = torch.argsort(group_S, stable=True)
    counts = torch.bincount(group_S)
    return [own.tolist() for own in order.split(counts[counts > 0].tolist())]
