"""Rows that hold a group's beginning once: nothing is lost, budgets hold, groups stay together."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.batch import Batch
from verl_core.batch.shared_prompt import (
    SharedRow,
    deal_groups,
    group_micro_batches,
    own_cost_S,
    row_tokens,
    shared_S,
)
from verl_core.config.errors import UserError

TOKENS = st.lists(st.integers(0, 1), max_size=5)
GROUPS = st.lists(st.tuples(TOKENS, st.lists(TOKENS, min_size=1, max_size=4)), min_size=1, max_size=4)


@st.composite
def batches(draw) -> Batch:
    """Groups whose sequences begin alike, in any order."""
    rows = [(p, prompt + answer) for p, (prompt, answers) in enumerate(draw(GROUPS)) for answer in answers]
    rows = draw(st.permutations([(p, ids or [1]) for p, ids in rows]))
    ids_N = torch.tensor([i for _, ids in rows for i in ids])
    batch = Batch(torch.tensor([len(ids) for _, ids in rows]), torch.tensor([p for p, _ in rows]), {"ids_N": ids_N})
    return batch.add(shared_len_S=shared_S(batch))


def groups(batch: Batch) -> list[list[int]]:
    return [(batch.group_S == p).nonzero()[:, 0].tolist() for p in range(batch.P)]


@given(batches())
def test_a_group_shares_its_longest_common_beginning(batch):
    sequences = [ids.tolist() for ids in batch["ids_N"].split(batch.length_S.tolist())]
    for members in groups(batch):
        most = min(len(sequences[s]) for s in members) - 1
        alike = next((i for i in range(most) if len({sequences[s][i] for s in members}) > 1), most)
        assert batch["shared_len_S"][members].tolist() == [alike] * len(members)


@given(batches())
def test_every_token_finds_itself_in_the_row(batch):
    row = SharedRow.of(batch)
    for column in (batch["ids_N"], batch.position_N):
        assert torch.equal(column[row.token_R][row.place_N], column)
    assert len(row.token_R) == sum(row.prefix_length) + sum(row.rest_length) == row_tokens(batch)
    saved = sum((len(members) - 1) * int(batch["shared_len_S"][members[0]]) for members in groups(batch))
    assert len(row.token_R) == batch.N - saved
    start_of_rest = sum(row.prefix_length)
    for s, (length, prefix) in enumerate(zip(row.rest_length, row.prefix_of, strict=True)):
        place = row.place_N[batch.seq_N == s].tolist()
        before = sum(row.prefix_length[:prefix]) if prefix >= 0 else 0
        shared = row.prefix_length[prefix] if prefix >= 0 else 0
        assert place == [*range(before, before + shared), *range(start_of_rest, start_of_rest + length)]
        start_of_rest += length


@given(batches(), st.integers(10, 30), st.integers(1, 3))
def test_micro_batches_hold_each_sequence_once_and_their_budget(batch, tokens, ranks):
    by_tokens = group_micro_batches(batch, tokens=tokens, ranks=ranks)
    by_count = group_micro_batches(batch, sequences=3, ranks=ranks)
    for cuts in (by_tokens, by_count):
        assert sorted(s for cut in cuts for s in cut) == list(range(batch.S))
    assert all(row_tokens(batch.select(cut)) <= tokens * ranks for cut in by_tokens)
    assert [len(cut) for cut in by_count[:-1]] == [3 * ranks] * (len(by_count) - 1)


@given(batches(), st.integers(1, 5))
def test_ranks_get_stretches_of_groups_of_about_equal_cost(batch, ranks):
    shares = deal_groups(batch.length_S, batch.group_S, ranks)
    assert len(shares) == ranks and sorted(s for share in shares for s in share) == list(range(batch.S))
    cut_groups = sum(len({r for r, share in enumerate(shares) for s in share if s in m}) - 1 for m in groups(batch))
    assert cut_groups <= ranks - 1
    costs = [int(batch.length_S[share].sum()) for share in shares]
    assert max(costs) <= batch.N / ranks + int(batch.length_S.max())


def test_a_prompt_costs_once_a_group():
    cost, prompt, group = (torch.tensor(x, dtype=torch.float64) for x in ([9, 5, 7, 6], [4, 3, 4, 3], [0, 1, 0, 1]))
    assert own_cost_S(cost, prompt, group.long()).tolist() == [9, 5, 3, 3]


def test_a_group_beyond_the_budget_is_cut_into_parts_with_the_prompt():
    ids_N = torch.tensor([i for a in range(5) for i in [*[9] * 10, *[a] * 4]])
    batch = Batch(torch.full((5,), 14), torch.zeros(5), {"ids_N": ids_N})
    batch.add(shared_len_S=shared_S(batch))
    assert group_micro_batches(batch, tokens=20) == [[0, 1], [2, 3], [4]]
    assert group_micro_batches(batch, tokens=30) == [[0, 1, 2, 3, 4]]
    with pytest.raises(UserError, match=r"5 of 5 sequences do not fit into actor.ppo_max_token_len_per_gpu=13"):
        group_micro_batches(batch, tokens=13)
