import math

import pytest
import torch
from algorithms_examples import batch_of

from verl_core.algorithms.kl import ESTIMATORS, AdaptiveKl, FixedKl, full_kl, kl_controller, kl_estimate, mean_kl
from verl_core.algorithms.produced import produced
from verl_core.config import catalogue
from verl_core.config.schema import KlCtrlConfig

K3 = math.exp(-0.5) - 1 + 0.5
BY_HAND = {
    **dict.fromkeys(("kl", "k1", "kl+", "k1+", "abs", "abs+"), 0.5),
    **dict.fromkeys(("mse", "k2", "mse+", "k2+"), 0.125),
    **dict.fromkeys(("low_var_kl", "k3", "low_var_kl+", "k3+"), K3),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_values_by_hand(name):
    estimate = kl_estimate(name, torch.tensor([-1.0]).double(), torch.tensor([-1.5]).double())
    assert estimate.item() == pytest.approx(BY_HAND[name], rel=1e-12)


def policy_and_reference():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=g, dtype=torch.float64, requires_grad=True)
    # close enough that no token reaches k3's clamp
    return logits, (logits.detach() + 0.5 * torch.randn(5, generator=g, dtype=torch.float64)).log_softmax(0)


def expectation(name: str):
    """Mean of the estimator and of its gradient over all five tokens, each weighed by its probability."""
    logits, ref_logp = policy_and_reference()
    logp = logits.log_softmax(0)
    mean = (logp.exp().detach() * kl_estimate(name, logp, ref_logp)).sum()
    return mean.item(), torch.autograd.grad(mean, logits)[0]


def exact_kl():
    logits, ref_logp = policy_and_reference()
    logp = logits.log_softmax(0)
    kl = (logp.exp() * (logp - ref_logp)).sum()
    return kl.item(), torch.autograd.grad(kl, logits)[0]


@pytest.mark.parametrize("name", ["k1", "kl", "k3", "low_var_kl", "k1+", "k3+"])
def test_value_is_unbiased(name):
    assert expectation(name)[0] == pytest.approx(exact_kl()[0], rel=1e-12)


@pytest.mark.parametrize("name", ["k2", "mse", "k1+", "kl+", "k3+", "low_var_kl+", "abs+", "mse+", "k2+"])
def test_gradient_is_unbiased(name):
    torch.testing.assert_close(expectation(name)[1], exact_kl()[1], rtol=1e-10, atol=1e-12)


def test_k1_as_a_loss_has_no_expected_gradient():
    torch.testing.assert_close(expectation("k1")[1], torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)


def test_k3_as_a_loss_pulls_along_the_other_direction_of_the_kl():
    logits, ref_logp = policy_and_reference()
    other = (ref_logp.exp() * (ref_logp - logits.log_softmax(0))).sum()
    torch.testing.assert_close(expectation("k3")[1], torch.autograd.grad(other, logits)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_far_apart_stays_finite(name):
    logp = torch.tensor([-1000.0, 0.0], requires_grad=True)
    estimate = kl_estimate(name, logp, torch.tensor([0.0, -1000.0]))
    estimate.sum().backward()
    assert torch.isfinite(estimate).all() and torch.isfinite(logp.grad).all()


def test_k3_is_exact_where_policies_nearly_agree():
    """d^2/2 to first order; exp(d) - 1 - d in float32 would be all rounding here."""
    estimate = kl_estimate("k3", torch.tensor([-1.0]), torch.tensor([-1.0 + 2.0**-12]))
    assert estimate.item() == pytest.approx(2.0**-25, rel=1e-2)


def test_every_name_of_the_configuration_is_its_function_here():
    sampled = [name for name in catalogue.names("kl", built=True) if name != "full"]  # which is no estimate
    assert sampled == list(ESTIMATORS)
    assert all(catalogue.implementation("kl", name) is ESTIMATORS[name] for name in ESTIMATORS)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_gradient_is_that_of_finite_differences(name):
    """Of its own value, or where it is straight-through of k2's."""
    ref = torch.tensor([-0.3, -2.0, -1.0], dtype=torch.float64)
    logp = torch.tensor([-0.9, -1.1, -1.5], dtype=torch.float64, requires_grad=True)
    gradient = torch.autograd.grad(kl_estimate(name, logp, ref).sum(), logp)[0]
    followed, step = ("k2" if name.endswith("+") else name), 1e-6
    with torch.no_grad():
        above, below = (kl_estimate(followed, logp + d, ref) for d in (step, -step))
    torch.testing.assert_close(gradient, (above - below) / (2 * step), rtol=1e-8, atol=1e-9)


def test_full_vocabulary_is_the_sum_that_the_estimators_estimate():
    logits, ref_logp = policy_and_reference()
    assert full_kl(logits.log_softmax(0), ref_logp).item() == pytest.approx(exact_kl()[0], rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: full_kl(x.log_softmax(-1), ref_logp), (logits,))
    two = torch.stack([logits.detach(), ref_logp]).log_softmax(-1)
    slow = [sum(math.exp(p) * (p - q) for p, q in zip(row, ref_logp.tolist(), strict=True)) for row in two.tolist()]
    torch.testing.assert_close(full_kl(two, ref_logp), torch.tensor(slow, dtype=torch.float64))


def test_full_vocabulary_with_tokens_that_are_excluded():
    """By a half and a half against a quarter each: log 2; the excluded ones add 0 and no NaN."""
    logp = torch.tensor([math.log(0.5), math.log(0.5), -math.inf, -math.inf])
    assert full_kl(logp, torch.full((4,), math.log(0.25))).item() == pytest.approx(math.log(2))


def test_unknown_name():
    with pytest.raises(ValueError, match="unknown KL estimator 'full'"):
        kl_estimate("full", torch.zeros(1), torch.zeros(1))


def test_the_mean_kl_of_a_step_by_hand():
    """Two tokens of 1 and 2, one of 4, none: means 1.5 and 4 over two sequences; nothing under mask 0 is looked at."""
    batch = batch_of([[0, 1, 1], [1], [0]])
    at = produced(batch)
    assert mean_kl(at.pick(torch.tensor([math.nan, 1.0, 2.0, 4.0, math.inf])), at) == (2.75, 2)
    for empty in (batch_of([[0]]), batch_of([])):
        assert mean_kl(torch.zeros(0), produced(empty)) == (0.0, 0)


def test_fixed_coefficient_stays():
    control = kl_controller(KlCtrlConfig(kl_coef=0.02))
    control.update(kl=100.0, sequences=1000)
    assert control.coef == 0.02 and isinstance(control, FixedKl)


def test_adaptive_coefficient_by_hand():
    control = kl_controller(KlCtrlConfig(type="adaptive", kl_coef=0.1, target_kl=0.1, horizon=1000))
    control.update(kl=0.11, sequences=100)  # error 0.1: times 1 + 0.1 * 0.1
    assert control.coef == pytest.approx(0.101)
    control.update(kl=5.0, sequences=100)  # error clipped to 0.2
    assert control.coef == pytest.approx(0.101 * 1.02)
    control.update(kl=0.0, sequences=100)  # clipped to -0.2
    assert control.coef == pytest.approx(0.101 * 1.02 * 0.98)


def test_resumed_controller_goes_on_where_it_was():
    control = AdaptiveKl(0.1, target=0.1, horizon=1000)
    control.update(0.5, 64)
    resumed = AdaptiveKl(0.1, target=0.1, horizon=1000)
    resumed.load_state(control.state())
    for each in (control, resumed):
        each.update(0.02, 64)
    assert resumed.coef == control.coef != 0.1
    changed = FixedKl(0.5)
    changed.load_state(FixedKl(0.1).state())
    assert changed.coef == 0.5
