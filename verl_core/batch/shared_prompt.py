"""Rows in which the answers of a group share what they begin with: where each token of a batch stands in such a row,
and how sequences are dealt to ranks and cut into micro-batches so that groups stay together.

What is shared is the longest run of tokens that all sequences of a group begin with, whoever produced them: the prompt,
or more. A token's hidden state depends on the tokens before it alone, so that it need not be computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_core.batch.batch import Batch
from verl_core.batch.packing import check_fits, micro_batches


def shared_S(batch: Batch) -> Tensor:
    """Tokens that a sequence's group begins with alike, at most all but one of its shortest. Reads ids_N. Shape [S]."""
    position_N, S = batch.position_N, torch.arange(batch.S)
    first_P = torch.full((batch.P,), batch.S).scatter_reduce(0, batch.group_S, S, "amin")
    leader_S = first_P[batch.group_S]
    leader_N = batch.cu_seqlens_S1[leader_S][batch.seq_N] + position_N
    inside_N = position_N < batch.length_S[leader_S][batch.seq_N]
    ids_N = batch["ids_N"]
    alike_N = inside_N & (ids_N == ids_N[leader_N.clamp(max=max(0, batch.N - 1))])
    # the first place that differs, else all but the last token
    end_S = (batch.length_S - 1).scatter_reduce(0, batch.seq_N[~alike_N], position_N[~alike_N], "amin")
    end_P = torch.full((batch.P,), batch.N).scatter_reduce(0, batch.group_S, end_S, "amin")
    return end_P[batch.group_S]


@dataclass(frozen=True)
class SharedRow:
    """A row of R <= N tokens: what the groups begin with, group by group, then the rest of each sequence, in the order
    of the batch. A group of one, or one that shares nothing, has all its tokens in the second part."""

    token_R: Tensor
    """The batch's token (place on the N axis) that stands in each place of the row."""
    place_N: Tensor
    """The place of each of the batch's tokens: several for one place where a group shares it."""
    prefix_length: tuple[int, ...]
    rest_length: tuple[int, ...]
    prefix_of: tuple[int, ...]
    """Which prefix a rest goes on from; -1: none."""

    @classmethod
    def of(cls, batch: Batch) -> SharedRow:
        """Reads shared_len_S (see `shared_S`), which a batch may have from a larger one that it was taken from."""
        own_S = _shared_here(batch)
        group_G, first_G = _first_of_group(batch.group_S, own_S)
        length_G = own_S[first_G]
        prefix_of_P = torch.full((batch.P,), -1).index_copy(0, group_G, torch.arange(len(group_G)))
        place_P = torch.zeros(batch.P, dtype=torch.int64).index_copy(0, group_G, length_G.cumsum(0) - length_G)

        place_N = place_P[batch.group_S][batch.seq_N] + batch.position_N
        rest_N = (batch.position_N >= own_S[batch.seq_N]).nonzero()[:, 0]
        R = int(length_G.sum()) + len(rest_N)
        place_N[rest_N] = torch.arange(R - len(rest_N), R)
        token_R = torch.empty(R, dtype=torch.int64)
        token_R[place_N] = torch.arange(batch.N)  # of the tokens that share a place any one
        lengths = length_G, batch.length_S - own_S, prefix_of_P[batch.group_S]
        return cls(token_R, place_N, *(tuple(x.tolist()) for x in lengths))


def row_tokens(batch: Batch) -> int:
    """R of the batch's `SharedRow`."""
    own_S = _shared_here(batch)
    _, first_G = _first_of_group(batch.group_S, own_S)
    return batch.N - int(own_S.sum()) + int(own_S[first_G].sum())


def deal_groups(cost_S: Tensor, group_S: Tensor, ranks: int) -> list[list[int]]:
    """Deals sequences to ranks as consecutive stretches of about equal cost, in the order of their groups: all but
    `ranks` - 1 groups stay whole, and a rank is off the mean by less than its two outermost sequences.

    Returns `ranks` lists of sequence indices, ascending in each; a rank's list is empty when there are too few.
    """
    order = torch.argsort(group_S, stable=True)
    cost = cost_S[order].double()
    middle = cost.cumsum(0) - cost / 2
    rank = (middle * ranks / cost.sum()).long().clamp(max=ranks - 1)
    return [order[rank == r].sort().values.tolist() for r in range(ranks)]


def own_cost_S(cost_S: Tensor, prompt_cost_S: Tensor, group_S: Tensor) -> Tensor:
    """What each sequence adds to a rank that has its group: the first of the group its whole cost, the others that
    without their prompt's."""
    _, first_G = _first_of_group(group_S, torch.ones_like(group_S))
    return (cost_S - prompt_cost_S).index_copy(0, first_G, cost_S[first_G])


def group_micro_batches(
    batch: Batch, sequences: int | None = None, tokens: int | None = None, ranks: int = 1
) -> list[list[int]]:
    """`batch.packing.micro_batches` for rows in which groups share: sequences are taken in the order of their groups,
    and a token budget counts what is shared once. A group that is larger than the budget is cut into parts that each
    carry what they share. Reads shared_len_S."""
    order = torch.argsort(batch.group_S, stable=True).tolist()
    if tokens is None:
        cuts = micro_batches(batch.length_S, sequences, tokens, ranks)
        return [sorted(order[i] for i in cut) for cut in cuts]
    check_fits(batch.length_S.tolist(), tokens, ranks)
    parts = _parts(batch, order, tokens * ranks)
    bins = micro_batches([cost for _, cost in parts], None, tokens, ranks)
    return sorted(sorted(s for i in cut for s in parts[i][0]) for cut in bins)


def _parts(batch: Batch, order: list[int], budget: int) -> list[tuple[list[int], int]]:
    """Sequences of one group each with the row they take, at most `budget`."""
    length, group, shared = (x.tolist() for x in (batch.length_S, batch.group_S, batch["shared_len_S"]))
    parts: list[tuple[list[int], int]] = []
    last = -1
    for s in order:
        own = length[s] - shared[s]
        if group[s] == last and parts[-1][1] + own <= budget:
            parts[-1] = ([*parts[-1][0], s], parts[-1][1] + own)
        else:
            parts.append(([s], length[s]))
        last = group[s]
    return parts


def _shared_here(batch: Batch) -> Tensor:
    """shared_len_S, and 0 for a group of which the batch has one sequence. Shape [S]."""
    several_P = torch.bincount(batch.group_S, minlength=batch.P) > 1
    return torch.where(several_P[batch.group_S], batch["shared_len_S"], 0)


def _first_of_group(group_S: Tensor, shared_S: Tensor) -> tuple[Tensor, Tensor]:
    """The groups that share something, ascending, and the first sequence of each."""
    some = (shared_S > 0).nonzero()[:, 0]
    order = some[torch.argsort(group_S[some], stable=True)]
    groups = group_S[order]
    new = torch.ones(len(groups), dtype=torch.bool)
    new[1:] = groups[1:] != groups[:-1]
    return groups[new], order[new]
