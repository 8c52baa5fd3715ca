"""VAPO's likelihood term on right answers (arXiv 2504.05118, section 4.3): -mu / tokens of right answers * sum logp."""

import pytest
import torch
from algorithms_examples import random_batch

from verl_core.algorithms.advantages import right_answers
from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.losses import PolicyLoss
from verl_core.batch import Segment, Trajectory, collate

MU = 0.3
PLAIN, WITH = PolicyLoss(want_entropy=False), PolicyLoss(want_entropy=False, positive_coef=MU)


def case(seed: int, right: list[bool] | None = None):
    """A batch in which some answers are right, and log-probs with gradients wanted."""
    batch = random_batch(seed)
    batch.add(positive_S=torch.tensor(right) if right else torch.arange(batch.S) % 3 == 0)
    WITH.mark(batch, seed=0)
    noise_N = torch.randn(batch.N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return batch, (batch["old_logp_N"] + 0.1 * noise_N).detach().requires_grad_()


def term(batch, logp_N, totals: Totals):
    """The likelihood term alone, and its metric."""
    with_it, metrics = WITH({Need.LOGP: logp_N}, batch, totals)
    return with_it - PLAIN({Need.LOGP: logp_N}, batch, totals)[0], metrics["actor/positive_lm_loss"].value


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_mean_cross_entropy_of_right_answers_tokens(seed: int):
    batch, logp_N = case(seed)
    value, logged = term(batch, logp_N, Totals.of(batch))
    sums, count = 0.0, 0
    for i in range(batch.N):
        if batch["mask_N"][i] and batch["positive_S"][batch.seq_N[i]]:
            sums, count = sums - float(logp_N[i].detach()), count + 1
    expected = sums / max(count, 1)
    assert float(value) == pytest.approx(MU * expected, abs=1e-6) and float(logged) == pytest.approx(expected, abs=1e-6)
    (gradient_N,) = torch.autograd.grad(value, logp_N)
    right_N = batch["mask_N"] & batch["positive_S"][batch.seq_N]
    assert torch.allclose(gradient_N, -MU / max(count, 1) * right_N.double(), atol=1e-6)


def test_parts_of_a_mini_batch_add_up_to_it():
    batch, logp_N = case(7)
    totals = Totals.of(batch)
    whole, _ = term(batch, logp_N, totals)
    for cut in (2, 3, batch.S):
        parts = torch.arange(batch.S).chunk(cut)
        shares = [term(batch.select(i), logp_N[batch.token_index(i)], totals)[0] for i in parts]
        assert float(sum(shares)) == pytest.approx(float(whole), abs=1e-6)


def test_where_nothing_is_right_it_is_nothing():
    batch, logp_N = case(3, right=[False] * random_batch(3).S)
    value, logged = term(batch, logp_N, Totals.of(batch))
    assert float(value) == 0 and float(logged) == 0


@pytest.mark.parametrize(
    "acc, reward, right",
    [(1.0, -0.5, True), (0.0, 1.0, False), (None, 0.1, True), (None, 0.0, False), (None, -1.0, False)],
)
def test_right_is_what_the_scorer_calls_right_else_what_earns(acc, reward, right):
    one = Trajectory(
        [1, 2], [0, 1], [0.0, -0.5], [-1, 0], [Segment("response", 1, 2)], "p", 0, reward=reward, meta={"acc": acc}
    )
    assert right_answers(collate([[one]])).tolist() == [right]
