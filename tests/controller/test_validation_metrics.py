"""Validation numbers by hand."""

import pytest

from verl_core.batch import Trajectory
from verl_core.controller.seeds import draw_seed
from verl_core.controller.validate import validation_metrics


def answer(source: str, reward: float, pred: str, sample: int, acc: float | None = None) -> Trajectory:
    meta = {"data_source": source, "pred": pred, "answer": pred, "acc": acc}
    return Trajectory([1, 2], [0, 1], [0.0, 0.0], [-1, 0], [], "g", sample, reward=reward, meta=meta)


def test_one_answer_a_prompt_gives_the_mean_reward_by_source():
    groups = [[answer("a", 1, "x", 0)], [answer("a", 0, "y", 0)], [answer("b", 0.5, "z", 0)]]
    metrics = validation_metrics(groups)
    assert metrics["val/test_score/a"] == 0.5
    assert metrics["val/test_score/b"] == 0.5
    assert not any(name.startswith("val-core") for name in metrics)


def test_mean_best_and_majority_of_n():
    first = [answer("a", r, p, k) for k, (r, p) in enumerate([(0, "7"), (1, "8"), (0, "7")])]
    second = [answer("a", r, p, k) for k, (r, p) in enumerate([(1, "5"), (1, "5"), (0, "6")])]
    metrics = validation_metrics([first, second])
    assert metrics["val-core/a/reward/mean@3"] == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert metrics["val-core/a/reward/best@3"] == 1.0
    assert metrics["val-core/a/reward/maj@3"] == 0.5  # 7 (wrong) and 5 (right)


def test_accuracy_is_the_scorers_word_not_reward_equal_to_one():
    metrics = validation_metrics([[answer("a", 2.0, "x", 0, acc=1.0)], [answer("a", 0.5, "y", 0, acc=0.0)]])
    assert metrics["val/acc/a"] == 0.5
    assert metrics["val/test_score/a"] == 1.25


def test_seeds_differ_by_every_part_of_their_key_and_repeat():
    keys = [
        (0, "rollout", 1, "0-5", 0),
        (0, "rollout", 1, "0-5", 1),
        (0, "rollout", 2, "0-5", 0),
        (1, "rollout", 1, "0-5", 0),
    ]
    seeds = [draw_seed(*k) for k in keys] + [draw_seed(0, "validation", 1, "0-5", 0)]
    assert len(set(seeds)) == 5
    assert draw_seed(*keys[0]) == seeds[0]
    assert all(0 <= s < 2**63 for s in seeds)
