"""Policy losses by hand and at their edges, and the tokens that the covariance losses hold back. Against the papers'
formulas: test_algorithms_every_loss."""

import math

import pytest
import torch
from algorithms_examples import batch_of, random_batch, split

from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.losses import PolicyLoss
from verl_core.algorithms.policy_loss import Options, Tokens
from verl_core.algorithms.policy_loss.covariance import covariance, select_clip_cov, select_kl_cov
from verl_core.algorithms.produced import produced
from verl_core.config import catalogue

LOSSES = catalogue.names("policy_loss", built=True)
OPTIONS = Options(low=0.2, high=0.28, c=1.6, tau_pos=0.9, tau_neg=1.3, ppo_kl_coef=0.4, dro_beta=0.7)


def tokens_of(batch, seed=1):
    g = torch.Generator().manual_seed(seed)
    at = produced(batch)
    old_M = at.pick(batch["old_logp_N"]) - 0.01
    logp_M = (old_M + 0.5 * torch.randn(at.M, generator=g, dtype=torch.float64)).clamp(max=-0.005)
    return Tokens(logp_M.requires_grad_(), old_M, at.pick(batch["advantages_N"]), at, at.pick(batch["selected_N"]))


# weight of the policy gradient A grad logp at (ratio, A): low 0.2, high 0.28, c 1.6, old probability 0.3
WEIGHTS = {
    "vanilla": {(1.1, 1): 1.1, (1.5, 1): 0, (0.5, -1): 0, (1.5, -1): 1.5, (2, -1): 0},
    "gspo": {(1.1, 1): 1.1, (1.5, 1): 0, (0.5, -1): 0, (2, -1): 2},
    "gmpo": {(1.1, 1): 1.1, (1.5, 1): 0, (0.5, -1): 0, (2, -1): 2},
    "geo_mean": {(1.1, 1): 1.1, (1.5, 1): 0, (0.5, -1): 0, (2, -1): 2},
    "cispo": {(1.1, 1): 1.1, (1.5, 1): 1.28, (0.5, -1): 0.8, (2, -1): 1.28},
    "gpg": {(1.5, 1): 1, (0.5, -1): 1},
    "reinforce": {(1.5, 1): 1.5, (2, -1): 1.6},
    "dppo_tv": {(1.5, 1): 1.5, (2, 1): 0, (0.1, -1): 0, (2, -1): 1.6, (0.1, 1): 0.1},
    "dppo_kl": {(1.5, 1): 1.5, (3, 1): 0, (2, -1): 1.6},
    "clip_cov": {(1.1, 1): 1.1, (1.5, 1): 0},
    "kl_cov": {(1.5, 1): 1.5, (2, -1): 2},
    # 4 sigma'(0) = 1: on-policy the plain gradient; sigma'(x) = 1 / (e^(x/2) + e^(-x/2))^2, tau_pos 0.9
    "sapo": {(1.0, 1): 1.0, (1.0, -1): 1.0, (2, 1): 8 / (math.exp(0.45) + math.exp(-0.45)) ** 2},
    "dro": {(1.0, 1): 1.0, (math.e, 1): 0.3, (math.e, -1): 1.7},  # 1 - beta ln(r) / A, beta 0.7
}


def test_every_loss_has_a_value_by_hand():
    assert set(WEIGHTS) == set(LOSSES)


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_a_token_gets_by_hand(name):
    for (ratio, a), weight in WEIGHTS[name].items():
        old_M = torch.full((1,), math.log(0.3), dtype=torch.float64)
        logp_M = (old_M + math.log(ratio)).requires_grad_()
        at = produced(batch_of([[0, 1]]))
        t = Tokens(logp_M, old_M, torch.full((1,), float(a), dtype=torch.float64), at, torch.zeros(1) > 0)
        catalogue.implementation("policy_loss", name)(t, OPTIONS)[0].sum().backward()
        assert logp_M.grad.item() == pytest.approx(-a * weight, abs=1e-9), (name, ratio, a)


@pytest.mark.parametrize(
    ("name", "value", "weight"), [("clip_cov", 0, 0), ("kl_cov", -1.5 + 0.4 * math.log(1.5), 1.5 - 0.4)]
)
def test_what_a_token_that_was_picked_gets_by_hand(name, value, weight):
    """Ratio 1.5, advantage 1: left out; pulled back by ppo_kl_coef 0.4."""
    logp_M = torch.full((1,), math.log(1.5), dtype=torch.float64, requires_grad=True)
    t = Tokens(logp_M, torch.zeros(1), torch.ones(1), produced(batch_of([[1]])), torch.ones(1) > 0)
    loss_M, _ = catalogue.implementation("policy_loss", name)(t, OPTIONS)
    loss_M.sum().backward()
    assert (loss_M.item(), logp_M.grad.item()) == pytest.approx((value, -weight))


@pytest.mark.parametrize("name", LOSSES)
def test_log_probs_far_apart_stay_finite(name):
    logp_M = torch.tensor([0.0, -500.0, 0.0, -500.0], requires_grad=True)
    at = produced(batch_of([[1, 1], [1, 1]]))
    t = Tokens(logp_M, torch.tensor([-500.0, 0.0, -500.0, 0.0]), torch.tensor([-1.0, 1, 1, -1]), at, logp_M < 1)
    loss_M, seen = catalogue.implementation("policy_loss", name)(t, Options())
    loss_M.sum().backward()
    assert all(v.isfinite().all() for v in (loss_M, logp_M.grad, *seen.values()))


def test_gspo_moves_every_token_of_a_sequence_alike():
    t = tokens_of(batch_of([[1, 1, 1]], old_logp_N=[-1.0, -2.0, -0.5], advantages_N=[1.0] * 3, selected_N=[False] * 3))
    catalogue.implementation("policy_loss", "gspo")(t, Options(low=9, high=9))[0].sum().backward()
    assert t.logp_M.grad.tolist() == pytest.approx([t.logp_M.grad[0].item()] * 3)


def test_gmpo_with_sequence_means_is_the_papers_mean_over_answers():
    batch = random_batch(3, poison=0.0)
    batch.add(advantages_N=batch["mask_N"] * (1.0 + batch.seq_N))
    logp_N = batch["old_logp_N"] + 0.1
    loss = PolicyLoss("gmpo", OPTIONS, agg_mode="seq-mean-token-mean", want_entropy=False)
    share, _ = loss({Need.LOGP: logp_N}, batch, Totals.of(batch))
    counts = produced(batch).count_S
    kept = [1.0 + s for s in range(batch.S) if counts[s]]
    assert share.item() == pytest.approx(-math.exp(0.1) * sum(kept) / len(kept))


def test_covariance_by_hand():
    """Means -1 and 1: (-1)(-1), 0, (1)(1)."""
    assert covariance(torch.tensor([-2.0, -1, 0]), torch.tensor([0.0, 1, 2])).tolist() == [1, 0, 1]


def test_kl_cov_takes_the_largest_and_clip_cov_draws_between_its_bounds():
    g = torch.Generator().manual_seed(0)
    logp, adv = torch.randn(2, 1000, generator=g)
    value = covariance(logp, adv)
    top = select_kl_cov(logp, adv, Options(kl_cov_ratio=0.01), 0)
    assert set(top.tolist()) == set(value.argsort(descending=True)[:10].tolist())
    options = Options(clip_cov_ratio=0.02, clip_cov_lb=0.5, clip_cov_ub=2.0)
    one, two = (select_clip_cov(logp, adv, options, seed) for seed in (1, 2))
    assert len(one) == len(set(one.tolist())) == 20 and ((value[one] > 0.5) & (value[one] < 2)).all()
    assert set(one.tolist()) != set(two.tolist())
    assert one.tolist() == select_clip_cov(logp, adv, options, 1).tolist()
    assert len(select_clip_cov(logp, adv, Options(clip_cov_lb=100, clip_cov_ub=200), 0)) == 0


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_marking_looks_at_the_whole_mini_batch_and_at_produced_tokens_only(name):
    options = Options(clip_cov_ratio=0.2, clip_cov_lb=0.1, kl_cov_ratio=0.2)
    loss = PolicyLoss(name, options)
    batch = random_batch(2).drop("selected_N")
    loss.mark(batch, 7)
    chosen_N = batch["selected_N"]
    assert 0 < chosen_N.sum() <= int(0.2 * batch["mask_N"].sum())
    assert not (chosen_N & ~batch["mask_N"]).any()
    assert any(any(row) for row in split(chosen_N, batch))
    empty = batch_of([[0, 0]], old_logp_N=[math.nan] * 2, advantages_N=[math.nan] * 2)
    loss.mark(empty, 7)
    assert not empty["selected_N"].any()


def test_a_batch_that_was_not_marked_is_refused():
    t = tokens_of(random_batch(0))
    with pytest.raises(ValueError, match="not marked"):
        catalogue.implementation("policy_loss", "kl_cov")(Tokens(t.logp_M, t.old_logp_M, t.adv_M, t.at), OPTIONS)
