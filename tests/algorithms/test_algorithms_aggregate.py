import pytest
import reference_losses as paper
import torch
from algorithms_examples import NAN, batch_of, produced_rows, random_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.algorithms.aggregate import aggregate
from verl_core.algorithms.loss import Totals
from verl_core.algorithms.produced import produced
from verl_core.config import catalogue

NAMES = catalogue.names("aggregation", built=True)


def of(batch, value_N, mode, totals=None, scale=10.0):
    at = produced(batch)
    return aggregate(at.pick(value_N), at, totals or Totals.of(batch), mode, scale)


BY_HAND = {
    "token-mean": (1 + 2 + 3 + 10) / 4,
    "token-sum": 16,
    "seq-mean-token-sum": (6 + 10) / 2,
    "seq-mean-token-mean": (2 + 10) / 2,
    "seq-mean-token-sum-norm": (6 + 10) / 2 / 10,
}


@pytest.mark.parametrize("mode", NAMES)
def test_modes_by_hand(mode):
    """Three, one and no produced token; what lies between and behind them is not in any mean."""
    batch = batch_of([[0, 1, 1, 0, 1], [0, 1, 0], [0, 0]])
    value_N = torch.tensor([NAN, 1, 2, NAN, 3, NAN, 10, NAN, NAN, NAN], dtype=torch.float64)
    assert of(batch, value_N, mode).item() == pytest.approx(BY_HAND[mode])


@settings(max_examples=15)
@pytest.mark.parametrize("mode", NAMES)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_shares_of_any_split_in_any_order_add_up(seed, mode, data):
    batch = random_batch(seed)
    expect = paper.aggregate([row["values"] for row in produced_rows(batch, ["values"])], mode, 10.0)
    totals = Totals.of(batch)
    order = data.draw(st.permutations(range(batch.S)))
    cuts = sorted(data.draw(st.lists(st.integers(0, batch.S), max_size=3)))
    parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, batch.S], strict=True)]
    share = sum(of(part, part["values_N"], mode, totals).item() for part in map(batch.select, parts))
    assert share == pytest.approx(expect, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("mode", NAMES)
def test_nothing_produced_is_0_with_a_gradient_of_0(mode):
    batch = batch_of([[0, 0], [0]])
    value_N = torch.full((3,), NAN, requires_grad=True)
    loss = of(batch, value_N, mode)
    loss.backward()
    assert loss.item() == 0
    assert value_N.grad.tolist() == [0, 0, 0]


def test_totals_count_produced_tokens_and_the_sequences_that_have_any():
    assert Totals.of(batch_of([[0, 1, 1, 0, 1], [0, 1], [0, 0], []])) == Totals(tokens=4, sequences=2, groups=2)


def test_what_it_refuses():
    batch = batch_of([[1]])
    with pytest.raises(ValueError, match="unknown loss_agg_mode 'mean'; there are token-mean"):
        of(batch, torch.ones(1), "mean")
    with pytest.raises(ValueError, match="loss_scale_factor > 0, not None"):
        of(batch, torch.ones(1), "seq-mean-token-sum-norm", scale=None)
