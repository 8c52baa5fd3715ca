import math
import statistics

import pytest
import torch
from algorithms_examples import NAN, batch_of, random_batch

from verl_core.algorithms.advantages import compute_advantage
from verl_core.algorithms.metrics import batch_metrics, explained_variance
from verl_core.config.schema import AlgorithmConfig


def test_every_number_by_hand():
    batch = batch_of(
        [[0, 0, 1, 1, 0, 1], [0, 1, 1]],
        reward_S=[1.0, 0.0],
        token_reward_N=[NAN, NAN, -0.1, -0.1, NAN, 0.9, NAN, -0.1, -0.2],
        advantages_N=[NAN, NAN, 1.0, 2.0, NAN, 3.0, NAN, -4.0, -2.0],
        returns_N=[NAN, NAN, 1.0, 1.0, NAN, 1.0, NAN, 0.0, 0.0],
        values_N=[NAN, NAN, 0.5, 0.5, NAN, 0.5, NAN, 0.5, 0.0],
        prompt_len_S=[2, 1],
        truncated_S=[False, True],
    )
    errors, returns = [0.5, 0.5, 0.5, -0.5, 0.0], [1, 1, 1, 0, 0]
    expect = {
        "critic/score/mean": 0.5,
        "critic/score/max": 1.0,
        "critic/score/min": 0.0,
        "critic/rewards/mean": 0.2,
        "critic/rewards/max": 0.7,
        "critic/rewards/min": -0.3,
        "critic/advantages/mean": 0.0,
        "critic/advantages/max": 3.0,
        "critic/advantages/min": -4.0,
        "critic/returns/mean": 0.6,
        "critic/returns/max": 1.0,
        "critic/returns/min": 0.0,
        "critic/values/mean": 0.4,
        "critic/values/max": 0.5,
        "critic/values/min": 0.0,
        "critic/vf_explained_var": 1 - statistics.variance(errors) / statistics.variance(returns),
        "response_length/mean": 3.0,
        "response_length/max": 4.0,
        "response_length/min": 2.0,
        "response_length/clip_ratio": 0.5,
        "response/aborted_ratio": 0.0,
        "prompt_length/mean": 1.5,
        "prompt_length/max": 2.0,
        "prompt_length/min": 1.0,
    }
    assert batch_metrics(batch) == pytest.approx(expect, abs=1e-6)


def test_columns_an_algorithm_does_not_have_give_no_metric():
    batch = batch_of([[0, 1], [0, 1]], [0, 0], reward_S=[1.0, 0.0], prompt_len_S=[1, 1], truncated_S=[False, False])
    compute_advantage("grpo", batch, AlgorithmConfig())
    seen = batch_metrics(batch)
    assert "critic/advantages/mean" in seen
    assert not any("values" in name or "returns" in name or "vf_" in name for name in seen)


@pytest.mark.parametrize("masks", [[], [[0, 0], [0]], [[0, 1], [0]], [[], []], [[0, 1]]])
def test_finite_when_answers_are_empty_or_missing(masks):
    batch = batch_of(masks)
    batch.add(
        reward_S=torch.zeros(batch.S),
        values_N=torch.full((batch.N,), NAN).where(~batch["mask_N"], torch.tensor(0.5)),
        prompt_len_S=torch.tensor([next((i for i, m in enumerate(mask) if m), len(mask)) for mask in masks]).long(),
        truncated_S=torch.zeros(batch.S, dtype=torch.bool),
    )
    compute_advantage("gae", batch, AlgorithmConfig())
    seen = batch_metrics(batch)
    assert len(seen) == 24
    assert all(map(math.isfinite, seen.values()))
    if masks:
        assert seen["response/aborted_ratio"] == sum(not any(mask) for mask in masks) / len(masks)


def test_explained_variance():
    target = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert explained_variance(target, target) == 1
    assert explained_variance(torch.full((4,), 2.5), target) == pytest.approx(0)
    assert explained_variance(-target, target) == pytest.approx(-3)
    assert explained_variance(target, torch.full((4,), 1.0)) == 0
    rounding = torch.tensor([1.0, 1.0, 1.0, 1.0 - 2**-24])
    assert explained_variance(target, rounding) == 0


def test_order_of_sequences_does_not_matter():
    batch = random_batch(5)
    batch.add(prompt_len_S=torch.ones(batch.S), truncated_S=batch["reward_S"] > 0)
    turned = batch.select(list(reversed(range(batch.S))))
    assert batch_metrics(turned) == pytest.approx(batch_metrics(batch), rel=1e-6)
