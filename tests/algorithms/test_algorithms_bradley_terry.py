"""The Bradley-Terry loss and where a reward is read off: hand values, float64 formulas, gradients, invariances."""

import math

import pytest
import torch

from verl_core.algorithms.bradley_terry import BradleyTerryLoss, bradley_terry, pairs, with_read_out
from verl_core.algorithms.loss import Need, Totals
from verl_core.batch import Batch
from verl_core.training.fsdp.metrics import join, values

PAIR_REWARDS = [(1.5, 0.5), (-0.3, 0.2), (0.7, 0.7)]
MARGINS = [0.0, 0.0, 0.5]


def batch_of(rewards: list[tuple[float, float]], margins: list[float], order: list[int] | None = None) -> Batch:
    """Pairs as a batch to read rewards off: one token with mask 1 at the end of each sequence."""
    S = 2 * len(rewards)
    length_S = torch.arange(S) % 3 + 2
    batch = Batch(
        length_S,
        torch.arange(S) // 2,
        {
            "reward_S": torch.tensor([r for two in rewards for r in two], dtype=torch.float64),
            "margin_S": torch.tensor([m for m in margins for _ in "wl"], dtype=torch.float64),
            "sample_S": torch.arange(S) % 2,
            "ids_N": torch.arange(int(length_S.sum())),
        },
    )
    batch.add(mask_N=torch.zeros(batch.N, dtype=torch.bool).index_fill(0, batch.cu_seqlens_S1[1:] - 1, True))
    return batch.select(order) if order else batch


def share(batch: Batch, totals: Totals, reward_S: torch.Tensor | None = None):
    """The loss's share and metrics where the value head says reward_S at the ends, and nonsense elsewhere."""
    reward_S = batch["reward_S"] if reward_S is None else reward_S
    value_N = torch.full((batch.N,), torch.nan, dtype=torch.float64)
    value_N = value_N.index_put((batch.cu_seqlens_S1[1:] - 1,), reward_S)
    return BradleyTerryLoss()({Need.VALUES: value_N}, batch, totals)


def reference(rewards, margins) -> float:
    """From the paper's formula, in plain Python."""
    sigmoids = [1 / (1 + math.exp(-(a - b - m))) for (a, b), m in zip(rewards, margins, strict=True)]
    return -sum(map(math.log, sigmoids)) / len(sigmoids)


def test_a_value_by_hand():
    """Difference 1: -log sigmoid(1) = 0.3133; equal rewards: log 2; a margin of 1 takes the difference away."""
    one, zero = torch.tensor([1.0]), torch.tensor([0.0])
    assert bradley_terry(one, zero, zero).item() == pytest.approx(0.3132617, abs=1e-6)
    assert bradley_terry(zero, zero, zero).item() == pytest.approx(math.log(2))
    assert bradley_terry(one, zero, one).item() == pytest.approx(math.log(2))


def test_far_apart_rewards_neither_overflow_nor_lose_their_gradient():
    chosen = torch.tensor([-300.0, 300.0], requires_grad=True)
    loss = bradley_terry(chosen, -chosen.detach(), torch.zeros(2))
    assert loss.tolist() == [600.0, 0.0]
    assert torch.autograd.grad(loss.sum(), chosen)[0].tolist() == [-1.0, 0.0]


def test_loss_and_metrics_are_means_over_pairs():
    batch = batch_of(PAIR_REWARDS, MARGINS)
    loss, metrics = share(batch, Totals.of(batch))
    seen = values(join([metrics]))
    assert loss.item() == pytest.approx(reference(PAIR_REWARDS, MARGINS))
    assert seen["reward_model/rewards/accuracy"] == pytest.approx(1 / 3)  # equal rewards are not the right order
    assert seen["reward_model/rewards/margin"] == pytest.approx((1.0 - 0.5 + 0.0) / 3)
    assert seen["reward_model/rewards/chosen"] == pytest.approx(sum(w for w, _ in PAIR_REWARDS) / 3)


@pytest.mark.parametrize("cuts", [1, 2, 3])
@pytest.mark.parametrize("order", [None, [5, 2, 0, 4, 1, 3]])
def test_neither_order_nor_micro_batches_of_whole_pairs_change_it(cuts, order):
    batch = batch_of(PAIR_REWARDS, MARGINS, order)
    totals = Totals.of(batch)
    groups = torch.arange(3).chunk(cuts)
    parts = [share(batch.select(torch.isin(batch.group_S, own)), totals) for own in groups]
    whole = values(join([share(batch, totals)[1]]))
    assert sum(loss.item() for loss, _ in parts) == pytest.approx(reference(PAIR_REWARDS, MARGINS))
    assert values(join([metrics for _, metrics in parts])) == pytest.approx(whole)


def test_the_gradient_is_that_of_finite_differences():
    batch = batch_of(PAIR_REWARDS, MARGINS)
    totals = Totals.of(batch)
    assert torch.autograd.gradcheck(
        lambda reward_S: share(batch, totals, reward_S)[0], batch["reward_S"].clone().requires_grad_()
    )


@pytest.mark.parametrize("broken", [[0], [0, 2], [0, 1, 2], [1, 3]])
def test_half_a_pair_is_an_error(broken):
    batch = batch_of(PAIR_REWARDS, MARGINS).select(broken)
    with pytest.raises(ValueError, match="a chosen and a rejected answer"):
        pairs(batch["reward_S"], batch)


def test_the_read_out_is_one_token_behind_each_sequence():
    batch = batch_of(PAIR_REWARDS, MARGINS)
    longer = with_read_out(batch)
    assert torch.equal(longer.length_S, batch.length_S + 1) and torch.equal(longer.group_S, batch.group_S)
    ends = longer.cu_seqlens_S1[1:] - 1
    assert longer["mask_N"].nonzero()[:, 0].tolist() == ends.tolist()
    kept = torch.ones(longer.N, dtype=torch.bool).index_fill(0, ends, False)
    assert torch.equal(longer["ids_N"][kept], batch["ids_N"])
    assert torch.equal(longer["margin_S"], batch["margin_S"]) and longer["sample_S"].tolist() == [0, 1] * 3
    assert Totals.of(longer).groups == 3
