"""PRIME's advantage and its reward model's loss against the paper's formulas in plain Python, values by hand, the
order, padding and cut of a batch, and degenerate groups."""

import math

import pytest
import torch
from algorithms_examples import NAN, batch_of, joined, padded, random_batch, split

from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.prime import ImplicitRewardLoss, prime_advantage, within_band
from verl_core.batch import Batch
from verl_core.config.schema import PrimeConfig


def paper_advantage(rewards: list[list[float]], outcomes: list[float], groups: list[int], how: PrimeConfig):
    """Equation 5 of arXiv 2502.01456, answer by answer and token by token; rewards of the produced tokens."""
    means = [sum(r) / len(r) if r else 0.0 for r in rewards]
    found = []
    for i, own in enumerate(rewards):
        others = [j for j, group in enumerate(groups) if group == groups[i] and j != i]
        mean = lambda values, others=others: sum(values[j] for j in others) / len(others) if others else None  # noqa: E731
        base, base_outcome = mean(means), mean(outcomes)
        outcome = 0.0 if base_outcome is None else outcomes[i] - base_outcome
        found.append([
            how.process_coef * sum(how.gamma ** (s - t) * (own[s] - (base or 0.0)) for s in range(t, len(own)))
            + how.outcome_coef * outcome
            for t in range(len(own))
        ])  # fmt: skip
    return found


def drawn(seed: int) -> Batch:
    batch = random_batch(seed)
    draw = torch.Generator().manual_seed(seed + 100)
    reward_N = 0.1 * torch.randn(batch.N, generator=draw, dtype=torch.float64)
    return batch.add(process_reward_N=torch.where(batch["mask_N"], reward_N, NAN))


def advantage(batch: Batch, how: PrimeConfig) -> torch.Tensor:
    return prime_advantage(batch, batch["process_reward_N"], batch["reward_S"], how)[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_advantage_is_the_papers(seed, gamma):
    how, batch = PrimeConfig(gamma=gamma, process_coef=2.0, outcome_coef=0.5), drawn(seed)
    own = [(batch.seq_N == s) & batch["mask_N"] for s in range(batch.S)]
    rewards = [batch["process_reward_N"][row].tolist() for row in own]
    expected = paper_advantage(rewards, batch["reward_S"].double().tolist(), batch.group_S.tolist(), how)
    found_N = advantage(batch, how)
    assert not found_N[~batch["mask_N"]].any()
    for row, values in zip(own, expected, strict=True):
        assert found_N[row].tolist() == pytest.approx(values, rel=1e-5, abs=1e-6)
    assert torch.equal(*prime_advantage(batch, batch["process_reward_N"], batch["reward_S"], how))


def test_by_hand():
    """Two answers: process rewards 1, 3 (mean 2) and 4 (mean 4); outcomes 1 and 0."""
    batch = batch_of([[0, 1, 1], [0, 1]], [0, 0], process_reward_N=[NAN, 1.0, 3.0, NAN, 4.0], reward_S=[1.0, 0.0])
    assert split(advantage(batch, PrimeConfig()), batch) == [[0, (1 - 4) + (3 - 4) + 1, (3 - 4) + 1], [0, (4 - 2) - 1]]
    outcome_alone = advantage(batch, PrimeConfig(process_coef=0.0))
    assert split(outcome_alone, batch) == [[0, 1, 1], [0, -1]]


def test_order_and_padding_are_nothing_to_it():
    batch, how = drawn(7), PrimeConfig()
    found_N = advantage(batch, how)
    order = torch.randperm(batch.S, generator=torch.Generator().manual_seed(1))
    again = advantage(batch.select(order), how)
    torch.testing.assert_close(again, found_N[batch.token_index(order)])
    wide = padded(batch, math.inf)
    torch.testing.assert_close(advantage(wide, how)[wide["mask_N"]], found_N[batch["mask_N"]])


def test_degenerate_groups():
    alone = batch_of([[0, 1, 1]], process_reward_N=[NAN, 0.5, 0.25], reward_S=[1.0])
    assert split(advantage(alone, PrimeConfig()), alone) == [[0, 0.75, 0.25]], "nobody to compare with"
    equal = batch_of([[1], [1]], [0, 0], process_reward_N=[0.5, 0.5], reward_S=[1.0, 1.0])
    assert not advantage(equal, PrimeConfig()).any()
    nearly = batch_of([[1], [1]], [0, 0], process_reward_N=[0.5, 0.5], reward_S=[1.0, 1.00001])
    assert advantage(nearly, PrimeConfig()).tolist() == pytest.approx([-1e-5, 1e-5], rel=0.02)
    empty = batch_of([[0, 0], [0, 1]], [0, 0], process_reward_N=[NAN, NAN, NAN, 0.5], reward_S=[0.0, 1.0])
    assert split(advantage(empty, PrimeConfig()), empty) == [[0, 0], [0, 0.5 + 1]]
    nothing = batch_of([[0], [0]], [0, 0], process_reward_N=[NAN, NAN], reward_S=[0.0, 1.0])
    assert not advantage(nothing, PrimeConfig()).any()


def test_prompts_are_kept_by_how_often_they_are_answered_rightly():
    batch = batch_of([[1]] * 6, [0, 0, 1, 1, 2, 2])
    right_S = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    assert within_band(batch, right_S, 0.2, 0.8).tolist() == [False, False, True, True, False, False]
    assert within_band(batch, right_S, 0.0, 1.0).all()
    assert within_band(batch, right_S, 0.5, 0.5).tolist() == [False, False, True, True, False, False]


# --- the reward model's loss


def judged(seed: int = 0) -> tuple[Batch, torch.Tensor]:
    batch = random_batch(seed, prompts=2)
    draw = torch.Generator().manual_seed(seed)
    outcome_S = torch.rand(batch.S, generator=draw).round()
    batch.add(outcome_S=outcome_S, reward_ref_logp_N=batch["ref_logp_N"])
    return batch, batch["old_logp_N"].clone()


def paper_loss(batch: Batch, logp_N: torch.Tensor, beta: float) -> float:
    terms = []
    for s in range(batch.S):
        own = (batch.seq_N == s) & batch["mask_N"]
        if own.any():
            r = beta * sum((logp_N[own] - batch["reward_ref_logp_N"][own]).tolist())
            right, o = 1 / (1 + math.exp(-r)), float(batch["outcome_S"][s])
            terms.append(-o * math.log(right) - (1 - o) * math.log(1 - right))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("seed", range(2))
def test_the_loss_is_the_cross_entropy_of_the_outcomes(seed):
    batch, logp_N = judged(seed)
    logp_N.requires_grad_()
    loss, _ = ImplicitRewardLoss(0.3)({Need.LOGP: logp_N}, batch, Totals.of(batch))
    assert float(loss) == pytest.approx(paper_loss(batch, logp_N.detach(), 0.3), rel=1e-9)
    loss.backward()
    for i in batch["mask_N"].nonzero()[:, 0].tolist():
        moved = [logp_N.detach().clone() for _ in range(2)]
        moved[0][i] += 1e-6
        moved[1][i] -= 1e-6
        slope = (paper_loss(batch, moved[0], 0.3) - paper_loss(batch, moved[1], 0.3)) / 2e-6
        assert float(logp_N.grad[i]) == pytest.approx(slope, rel=1e-4, abs=1e-9)
    assert not logp_N.grad[~batch["mask_N"]].any()


def test_micro_batches_add_up_to_it():
    batch, logp_N = judged(3)
    totals, loss = Totals.of(batch), ImplicitRewardLoss(0.3)
    whole, logged = loss({Need.LOGP: logp_N}, batch, totals)
    parts, shares = [], 0.0
    for index in torch.randperm(batch.S, generator=torch.Generator().manual_seed(2)).split(2):
        share, part = loss({Need.LOGP: logp_N[batch.token_index(index)]}, batch.select(index), totals)
        shares += float(share)
        parts.append(part)
    assert shares == pytest.approx(float(whole), rel=1e-12)
    assert joined(parts) == pytest.approx(joined([logged]))


def test_before_it_has_learned_it_says_one_half():
    batch, _ = judged(1)
    loss, metrics = ImplicitRewardLoss(0.05)({Need.LOGP: batch["reward_ref_logp_N"]}, batch, Totals.of(batch))
    assert float(loss) == pytest.approx(math.log(2))
    produced_S = batch.sum_S(batch["mask_N"]) > 0
    assert joined([metrics])["reward_model/accuracy"] == pytest.approx(
        float((batch["outcome_S"][produced_S] == 0).double().mean())
    )


def test_a_batch_in_which_nothing_was_produced_has_no_loss():
    batch = batch_of([[0], [0]], [0, 0], reward_ref_logp_N=[NAN, NAN], outcome_S=[1.0, 0.0])
    loss, metrics = ImplicitRewardLoss(0.05)({Need.LOGP: torch.full((2,), NAN)}, batch, Totals.of(batch))
    assert float(loss) == 0 and joined([metrics]) == {"reward_model/accuracy": 0}
