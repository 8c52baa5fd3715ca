from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.batch import Batch, balance, micro_batches
from verl_core.batch.packing import cut_further
from verl_core.config.errors import UserError

costs = st.lists(st.integers(0, 1000), max_size=40)


@given(costs, st.integers(1, 9))
def test_every_sequence_goes_to_exactly_one_rank_in_order(cost, ranks):
    shares = balance(cost, ranks)
    assert len(shares) == ranks
    assert sorted(s for share in shares for s in share) == list(range(len(cost)))
    assert all(share == sorted(share) for share in shares)
    assert shares == balance(torch.tensor(cost), ranks)


@given(costs, st.integers(1, 9))
def test_no_rank_is_ahead_of_another_by_more_than_one_sequence(cost, ranks):
    """The guarantee of dealing to the least loaded rank: taking its smallest sequence away, no rank leads."""
    load = [sum(cost[s] for s in share) for share in balance(cost, ranks)]
    smallest = [min((cost[s] for s in share), default=0) for share in balance(cost, ranks)]
    assert all(total - least <= min(load) for total, least in zip(load, smallest, strict=True))


@settings(max_examples=30)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 3))
def test_largest_share_is_within_four_thirds_of_the_best(cost, ranks):
    best = min(
        max(sum(c for c, r in zip(cost, deal, strict=True) if r == rank) for rank in range(ranks))
        for deal in product(range(ranks), repeat=len(cost))
    )
    assert max(sum(cost[s] for s in share) for share in balance(cost, ranks)) <= best * 4 / 3


def test_fewer_sequences_than_ranks_and_empty_sequences():
    assert balance([5, 7], 4) == [[1], [0], [], []]
    assert balance([], 3) == [[], [], []]
    ten = [3, 1, 4, 1, 5, 9, 2, 6, 0, 5]
    assert sorted(s for share in balance(ten, 4) for s in share) == list(range(10))
    assert sorted(len(share) for share in balance([0] * 8, 4)) == [2, 2, 2, 2]
    with pytest.raises(ValueError, match="0 ranks"):
        balance([1], 0)


def test_int32_lengths_do_not_overflow():
    length_S = torch.full((80_000,), 60_000, dtype=torch.int32)  # 4.8e9 tokens in all
    shares = balance(length_S, 2)
    assert [len(share) for share in shares] == [40_000, 40_000]


@given(costs, st.integers(1, 50))
def test_by_count_consecutive(length, sequences):
    parts = micro_batches(length, sequences=sequences)
    assert [s for part in parts for s in part] == list(range(len(length)))
    assert all(len(part) == sequences for part in parts[:-1])
    assert all(1 <= len(part) <= sequences for part in parts)


@given(costs, st.integers(1000, 4000))
def test_by_tokens_within_budget_and_lossless(length, tokens):
    parts = micro_batches(length, tokens=tokens)
    assert sorted(s for part in parts for s in part) == list(range(len(length)))
    load = [sum(length[s] for s in part) for part in parts]
    assert all(total <= tokens for total in load)
    assert all(part == sorted(part) and part for part in parts)
    # no two bins would fit into one, so there are less than twice as many as the tokens need
    assert all(a + b > tokens for i, a in enumerate(load) for b in load[i + 1 :])
    assert parts == micro_batches(torch.tensor(length), tokens=tokens)


def test_by_tokens_worked_by_hand():
    assert micro_batches([6, 5, 4, 3, 2], tokens=10) == [[0, 2], [1, 3, 4]]


def test_a_sequence_over_the_budget_is_refused_with_numbers():
    with pytest.raises(UserError) as caught:
        micro_batches([10, 700, 513], tokens=512)
    assert "2 of 3 sequences" in caught.value.message
    assert "actor.ppo_max_token_len_per_gpu=512" in caught.value.message
    assert "700 tokens" in caught.value.message
    assert "actor.ppo_max_token_len_per_gpu=700" in (caught.value.hint or "")


@pytest.mark.parametrize("rule", [{}, {"sequences": 2, "tokens": 8}, {"sequences": 0}, {"tokens": 0}])
def test_exactly_one_sensible_rule(rule):
    with pytest.raises(ValueError):
        micro_batches([1, 2], **rule)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(9, 30), st.integers(1, 4))
def test_dealt_and_packed_batches_lose_nothing(length, tokens, ranks):
    S = len(length)
    batch = Batch(torch.tensor(length), torch.arange(S), {"ids_N": torch.arange(sum(length))})
    seen = torch.zeros(batch.N, dtype=torch.int64)
    for share in balance(batch.length_S, ranks):
        mine = batch.select(share)
        for part in micro_batches(mine.length_S, tokens=tokens):
            seen[mine.select(part)["ids_N"]] += 1
    assert (seen == 1).all()


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(50, 120), st.integers(0, 25))
def test_cutting_further_gives_the_count_where_sequences_suffice(length, tokens, count):
    before = micro_batches(length, tokens=tokens)
    after = cut_further(before, length, count)
    assert sorted(s for part in after for s in part) == list(range(len(length)))
    assert len(after) == max(len(before), min(count, len(length)))
    assert all(part and part == sorted(part) for part in after)
    longest = [max((sum(length[s] for s in part) for part in parts), default=0) for parts in (before, after)]
    assert longest[1] <= longest[0]
    if count <= len(before):
        assert after == before
