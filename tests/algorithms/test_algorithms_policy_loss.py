import math

import pytest
import torch
from algorithms_examples import batch_of

from verl_core.algorithms.policy_loss import Options, Tokens, clipped
from verl_core.algorithms.produced import produced

CLIP = Options(low=0.2, high=0.28, c=3.0)


def vanilla(logp_M, old_logp_M, adv_M, options):
    at = produced(batch_of([[1] * len(logp_M)]))
    return clipped.vanilla(Tokens(logp_M, old_logp_M, adv_M, at), options)


def one(ratio: float, advantage: float):
    loss, seen = vanilla(torch.tensor([math.log(ratio)]), torch.zeros(1), torch.tensor([advantage]), CLIP)
    return loss.item(), {name: v.item() for name, v in seen.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped", "lower"),
    [
        (1.0, 2.0, -2.0, 0, 0),  # inside
        (1.2, 1.0, -1.2, 0, 0),  # inside the wider upper bound
        (1.5, 1.0, -1.28, 1, 0),  # held at 1 + high
        (0.5, 1.0, -0.5, 0, 0),  # a good token that became unlikely may come back
        (0.5, -1.0, 0.8, 1, 0),  # held at 1 - low
        (2.0, -1.0, 2.0, 0, 0),  # a bad token that became likely is pushed down
        (5.0, -1.0, 3.0, 0, 1),  # but no harder than c
        (5.0, -2.0, 6.0, 0, 1),
        (1.3, 0.0, 0.0, 0, 0),
    ],
)
def test_values_by_hand(ratio, advantage, loss, clipped, lower):
    value, seen = one(ratio, advantage)
    assert value == pytest.approx(loss, rel=1e-5)
    assert (seen["pg_clipfrac"], seen["pg_clipfrac_lower"]) == (clipped, lower)
    assert seen["ppo_kl"] == pytest.approx(-math.log(ratio), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("ratio", "advantage", "flows"),
    [(1.1, 1.0, True), (1.5, 1.0, False), (0.5, -1.0, False), (2.0, -1.0, True), (5.0, -1.0, False)],
)
def test_clipped_tokens_have_no_gradient_and_others_have_the_policy_gradient(ratio, advantage, flows):
    logp = torch.tensor([math.log(ratio)], requires_grad=True)
    vanilla(logp, torch.zeros(1), torch.tensor([advantage]), CLIP)[0].sum().backward()
    assert logp.grad.item() == pytest.approx(-advantage * ratio if flows else 0.0, rel=1e-5)
