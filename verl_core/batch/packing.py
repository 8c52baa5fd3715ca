"""Dealing sequences out to ranks, and cutting a rank's share into micro-batches.

Both return lists of sequence indices for `Batch.select`; every sequence stands in exactly one list. Nothing is drawn at
random: the same lengths give the same lists on every machine.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

from torch import Tensor

from verl_core.config.errors import UserError


def balance(cost_S: Tensor | Sequence[float], ranks: int) -> list[list[int]]:
    """Deals sequences to ranks so that the largest sum of costs is small: longest first, each to the rank with the
    least so far (R. L. Graham 1969: at most 4/3 of the best deal).

    Returns `ranks` lists of sequence indices, ascending in each. Ranks get no sequence when there are too few. Raises
    ValueError for ranks < 1.
    """
    if ranks < 1:
        raise ValueError(f"cannot deal sequences to {ranks} ranks")
    cost = cost_S.tolist() if isinstance(cost_S, Tensor) else list(cost_S)
    shares: list[list[int]] = [[] for _ in range(ranks)]
    # (sum of costs, sequences, rank): among equals the rank with fewer sequences, so that free ones spread out too
    load: list[tuple[float, int, int]] = [(0, 0, r) for r in range(ranks)]
    for s in sorted(range(len(cost)), key=lambda s: -cost[s]):
        total, count, rank = load[0]
        shares[rank].append(s)
        heapq.heapreplace(load, (total + cost[s], count + 1, rank))
    return [sorted(share) for share in shares]


def micro_batches(
    length_S: Tensor | Sequence[int], sequences: int | None = None, tokens: int | None = None, ranks: int = 1
) -> list[list[int]]:
    """Cuts a rank's share into micro-batches, by exactly one of two rules.

    sequences: that many consecutive sequences each (the last may hold fewer).
    tokens: few bins of at most so many tokens (best-fit decreasing), ordered by their first sequence.
    ranks: so many ranks work on the share together, and have either rule so many times.

    Returns lists of sequence indices, ascending in each; none for no sequences. Raises UserError when a sequence alone
    is longer than the token budget, ValueError when not exactly one rule is given or it is < 1.
    """
    length = length_S.tolist() if isinstance(length_S, Tensor) else list(length_S)
    if (sequences is None) == (tokens is None):
        raise ValueError(f"give exactly one of sequences and tokens (got {sequences} and {tokens})")
    if tokens is not None:
        check_fits(length, tokens, ranks)
        return _bins(length, tokens * ranks)
    if sequences is None or sequences < 1:
        raise ValueError(f"a micro-batch cannot hold {sequences} sequences")
    sequences *= ranks
    return [list(range(s, min(s + sequences, len(length)))) for s in range(0, len(length), sequences)]


def cut_further(parts: Sequence[Sequence[int]], length_S: Tensor | Sequence[int], count: int) -> list[list[int]]:
    """Micro-batches cut in two, the longest first, until there are `count` of them or each holds one sequence: ranks
    run equally many, and one with fewer would compute on padding meanwhile. None of the new ones is longer."""
    length = length_S.tolist() if isinstance(length_S, Tensor) else list(length_S)
    # (tokens, negative as heaps give the least first; sequences)
    whole = [(-sum(length[s] for s in part), list(part)) for part in parts]
    single = [part for part in whole if len(part[1]) < 2]
    several = [part for part in whole if len(part[1]) >= 2]
    heapq.heapify(several)
    while several and len(single) + len(several) < count:
        _, part = heapq.heappop(several)
        for half in balance([length[s] for s in part], 2):
            piece = (-sum(length[part[i]] for i in half), [part[i] for i in half])
            heapq.heappush(several, piece) if len(half) > 1 else single.append(piece)
    return sorted(part for _, part in (*single, *several))


def check_fits(length: Sequence[int], tokens_a_rank: int, ranks: int = 1) -> None:
    """Raises UserError when a sequence is longer than the token budget of the ranks that work on it, ValueError for a
    budget < 1."""
    if tokens_a_rank < 1:
        raise ValueError(f"a micro-batch cannot hold {tokens_a_rank} tokens")
    if too_long := [n for n in length if n > tokens_a_rank * ranks]:
        budget = f"actor.ppo_max_token_len_per_gpu={tokens_a_rank}" + (f" x {ranks} ranks" if ranks > 1 else "")
        enough = -(-max(too_long) // ranks)
        raise UserError(
            f"{len(too_long)} of {len(length)} sequences do not fit into {budget}: the longest has {max(too_long)} "
            "tokens",
            hint=f"set actor.ppo_max_token_len_per_gpu={enough} or more (and so the critic's and the log-prob "
            "keys), or lower data.max_prompt_length or data.max_response_length",
        )


def _bins(length: list[int], tokens: int) -> list[list[int]]:
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, bin), ascending: the first that is large enough fits best
    for s in sorted(range(len(length)), key=lambda s: -length[s]):
        at = bisect_left(room, (length[s], -1))
        if at < len(room):
            left, b = room.pop(at)
        else:
            left, b = tokens, len(bins)
            bins.append([])
        bins[b].append(s)
        insort(room, (left - length[s], b))
    return sorted(sorted(b) for b in bins)
