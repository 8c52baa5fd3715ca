"""A micro-batch as the row of tokens that a network is called on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle

import torch
from torch import Tensor

from verl_core.batch import Batch
from verl_core.batch.batch import axis_of
from verl_core.batch.shared_prompt import SharedRow
from verl_core.models.packing import Packing, sent
from verl_core.models.shared_prompt import SharedPacking
from verl_core.models.ulysses import Split


@dataclass(frozen=True)
class PackedInput:
    """One micro-batch of N tokens on the device: a row of them (each group's common beginning once, where it is to be
    shared) and, behind them, padding in sequences of its own. Where ranks split the row (`split`), ids are this rank's
    R tokens of it; positions are as well, but whole where layers gather the row.

    `token_K` are the places on the N axis that quantities are wanted for (mask 1, not first in their sequence) and
    whose hidden state this rank has: what is known of token i comes from the hidden state at i-1, in row `hidden_K`.
    `columns` are other columns of the batch at these places.
    """

    ids_1R: Tensor
    position_1R: Tensor
    packing: Packing
    split: Split | None
    token_K: Tensor
    hidden_K: Tensor
    target_K: Tensor
    N: int
    columns: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        batch: Batch,
        device: torch.device,
        row: int = 0,
        split: Split | None = None,
        columns: Collection[str] = (),
        least: tuple[int, int] = (0, 0),
    ) -> PackedInput:
        """Reads ids_N, mask_N, `columns` and, where groups are to share, shared_len_S. `row`: length of the padded row,
        where it is longer than its tokens; ranks that split it must divide it. least: see Packing."""
        shared = SharedRow.of(batch) if "shared_len_S" in batch else None
        token_R = shared.token_R if shared else torch.arange(batch.N)
        place_N = shared.place_N if shared else token_R
        prompts = shared.prefix_length if shared else ()
        lengths = shared.rest_length if shared else tuple(batch.length_S.tolist())
        exchanging = None if split and split.gathers else split  # in attention
        tails = _tails(row - len(token_R), max((*prompts, *lengths)))
        if shared and prompts:
            prompt_of = (*shared.prefix_of, *(-1,) * len(tails))
            packing: Packing = SharedPacking(prompts, (*lengths, *tails), prompt_of, device, exchanging)
        else:
            packing = Packing((*lengths, *tails), device, exchanging, least)

        ids_R = torch.cat([batch["ids_N"][token_R], *(torch.zeros(n, dtype=torch.int64) for n in tails)])
        position_R = torch.cat([batch.position_N[token_R], *(torch.arange(n) for n in tails)])
        begin, end = split.piece(len(ids_R)) if split else (0, len(ids_R))
        token_K = (batch["mask_N"].bool() & (batch.position_N > 0)).nonzero()[:, 0]
        hidden_K = place_N[token_K - 1]
        own_K = (hidden_K >= begin) & (hidden_K < end)
        token_K, hidden_K = token_K[own_K], hidden_K[own_K] - begin
        return cls(
            ids_1R=sent(ids_R[begin:end], device)[None],
            position_1R=sent(position_R[begin:end] if exchanging else position_R, device)[None],
            packing=packing,
            split=split,
            token_K=sent(token_K, device),
            hidden_K=sent(hidden_K, device),
            target_K=sent(batch["ids_N"][token_K], device),
            N=batch.N,
            columns={name: sent(batch[name][token_K], device) for name in columns},
        )


def filler(batch: Batch) -> Batch:
    """Two tokens with the columns of this batch, three in a batch that shares prompts: two sequences that share their
    first. The last one is counted, so that every parameter takes part in the backward pass."""
    count = 2 if "shared_len_S" in batch else 1
    columns = {name: x.new_zeros(2 * count, *x.shape[1:]) for name, x in batch.columns.items() if axis_of(name) == "N"}
    columns["mask_N"] = torch.arange(2 * count) == 2 * count - 1
    if count == 2:
        columns["shared_len_S"] = torch.ones(2, dtype=torch.int64)
    return Batch(torch.full((count,), 2), torch.zeros(count, dtype=torch.int64), columns)


def full_row(batch: Batch, row: int) -> Batch:
    """Sequences of the batch, over and again from the shortest on while a row of `row` tokens has room, so that experts
    get their usual shares; where prompts are shared, the shortest stands twice. Their last token alone is counted.
    `filler`, where there is no room."""
    shortest = torch.argsort(batch.length_S).tolist()
    twice = shortest[:1] if "shared_len_S" in batch else []
    index: list[int] = []
    for s in chain(twice, cycle(shortest)):
        row -= int(batch.length_S[s])
        if row < 0:
            break
        index.append(s)
    if len(index) <= len(twice):
        return filler(batch)
    found = batch.select(index)
    return found.drop("mask_N").add(mask_N=torch.arange(found.N) == found.N - 1)


def segments(length_S: Sequence[int], row: int) -> tuple[int, int]:
    """How many sequences a row of `row` tokens holds, those of its padding too, and the longest of them."""
    longest = max(length_S)
    return len(length_S) + len(_tails(row - sum(length_S), longest)), longest


def _tails(padding: int, longest: int) -> list[int]:
    """Lengths of the sequences that padding consists of."""
    return [min(longest, padding - at) for at in range(0, padding, longest)]
