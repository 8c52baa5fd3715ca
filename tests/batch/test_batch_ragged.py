import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.batch import Batch, concat

lengths = st.lists(st.integers(0, 5), min_size=1, max_size=8)


def numbered(length: list[int], group: list[int] | None = None) -> Batch:
    """A batch in which every entry of every column tells where it came from."""
    group = list(range(len(length))) if group is None else group
    N, S, P = sum(length), len(length), max(group, default=-1) + 1
    return Batch(
        torch.tensor(length, dtype=torch.int64),
        torch.tensor(group, dtype=torch.int64),
        {
            "ids_N": torch.arange(N),
            "hidden_N": torch.arange(2 * N, dtype=torch.float32).reshape(N, 2),
            "row_S": torch.arange(S),
            "prompt_P": 10 * torch.arange(P),
            "note_blob": [f"row {s}" for s in range(S)],
        },
    )


def rows(batch: Batch, column: str = "ids_N") -> list[list[int]]:
    """A token column as one list a sequence, cut by a plain loop."""
    out, at = [], 0
    for n in batch.length_S.tolist():
        out.append(batch[column][at : at + n].tolist())
        at += n
    return out


def test_offsets_and_positions_by_hand():
    batch = numbered([2, 0, 3])
    assert batch.cu_seqlens_S1.tolist() == [0, 2, 2, 5]
    assert batch.seq_N.tolist() == [0, 0, 2, 2, 2]
    assert batch.position_N.tolist() == [0, 1, 0, 1, 2]
    assert (batch.S, batch.N, batch.P) == (3, 5, 3)


@given(lengths, st.data())
def test_select_takes_exactly_the_asked_sequences(length, data):
    S = len(length)
    group = data.draw(st.lists(st.integers(0, 3), min_size=S, max_size=S))
    batch = numbered(length, group)
    order = data.draw(st.lists(st.integers(0, S - 1), max_size=S))
    picked = batch.select(order)
    assert rows(picked) == [rows(batch)[s] for s in order]
    assert rows(picked, "hidden_N") == [rows(batch, "hidden_N")[s] for s in order]
    assert picked["row_S"].tolist() == order
    assert picked["note_blob"] == [f"row {s}" for s in order]
    # each sequence still finds its prompt, though groups are renumbered without gaps
    assert picked["prompt_P"][picked.group_S].tolist() == [10 * group[s] for s in order]
    assert sorted(set(picked.group_S.tolist())) == list(range(picked.P))


def test_select_by_bool_mask_is_a_mask_not_indices():
    picked = numbered([2, 1, 3]).select(torch.tensor([True, False, True]))
    assert picked["row_S"].tolist() == [0, 2]


@given(lengths, st.data())
def test_cut_anywhere_and_joined_is_the_same_batch(length, data):
    batch = numbered(length)  # one group a sequence, so cutting splits no group
    cut = data.draw(st.integers(0, len(length)))
    joined = concat([batch.select(range(cut)), batch.select(range(cut, len(length)))])
    assert joined.length_S.tolist() == length
    assert joined.group_S.tolist() == batch.group_S.tolist()
    for name, value in batch.columns.items():
        assert torch.equal(joined[name], value) if isinstance(value, torch.Tensor) else joined[name] == value


def test_concat_keeps_groups_of_different_batches_apart():
    joined = concat([numbered([1, 1], [0, 0]), numbered([1, 1], [0, 1])])
    assert joined.group_S.tolist() == [0, 0, 1, 2]
    with pytest.raises(ValueError, match="different columns"):
        concat([numbered([1]), numbered([1]).drop("row_S")])
    with pytest.raises(ValueError, match="no batch"):
        concat([])


@given(lengths)
def test_ragged_is_the_inverse_of_padded(length):
    batch = numbered(length)
    dense = batch.padded("ids_N", fill=-1)
    assert dense.shape == (len(length), max(length))
    assert [[x for x in row if x >= 0] for row in dense.tolist()] == rows(batch)
    assert torch.equal(batch.ragged(dense), batch["ids_N"])
    assert torch.equal(batch.ragged(batch.padded("hidden_N")), batch["hidden_N"])


@given(lengths)
def test_sum_over_sequences(length):
    batch = numbered(length)
    assert batch.sum_S(batch["ids_N"]).tolist() == [sum(r) for r in rows(batch)]
    assert batch.sum_S(batch["ids_N"] % 2 == 0).tolist() == [sum(x % 2 == 0 for x in r) for r in rows(batch)]


@settings(max_examples=30)
@given(lengths, st.randoms())
def test_values_of_permuted_micro_batches_find_their_place(length, random):
    batch = numbered(length)
    order = list(range(batch.S))
    random.shuffle(order)
    cut = random.randint(0, batch.S)
    out_N = torch.full((batch.N,), -1)
    for part in (order[:cut], order[cut:]):
        out_N[batch.token_index(torch.tensor(part, dtype=torch.int64))] = batch.select(part)["ids_N"]
    assert torch.equal(out_N, batch["ids_N"])


def test_offsets_do_not_overflow_with_int32_lengths():
    length_S = torch.full((60_000,), 60_000, dtype=torch.int32)
    batch = Batch(length_S, torch.zeros(60_000, dtype=torch.int32), {})
    assert batch.N == 3_600_000_000
    assert int(batch.cu_seqlens_S1[-1]) == 3_600_000_000


def test_a_column_that_does_not_fit_is_refused():
    batch = numbered([2, 1])
    with pytest.raises(ValueError, match="values_N has 2 entries, its axis has 3"):
        batch.add(values_N=torch.zeros(2))
    with pytest.raises(ValueError, match="does not end in its axis"):
        batch.add(values=torch.zeros(3))
    with pytest.raises(KeyError, match="no column 'values_N'"):
        batch["values_N"]
    with pytest.raises(ValueError, match="2 lengths but 1 group"):
        Batch(torch.tensor([1, 1]), torch.tensor([0]), {})


def test_empty_batch_has_every_operation():
    batch = numbered([2, 1]).select([])
    assert (batch.S, batch.N, batch.P) == (0, 0, 0)
    assert batch.padded("ids_N").shape == (0, 0)
    assert batch.sum_S(batch["ids_N"]).tolist() == []
    assert concat([batch, batch]).S == 0


def test_pickle_carries_the_columns_and_nothing_derived():
    batch = numbered([3] * 1000)
    fresh = len(pickle.dumps(batch))
    assert batch.seq_N.numel() == batch.position_N.numel() == 3000
    assert len(pickle.dumps(batch)) == fresh
    again = pickle.loads(pickle.dumps(batch))
    assert torch.equal(again["ids_N"], batch["ids_N"]) and again["note_blob"] == batch["note_blob"]
