"""Validation numbers by hand, and the estimators against counting out every subset."""

import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.batch import Trajectory
from verl_core.controller.scores import Answer, answer_of, best_at, ks_of, majority, pass_at, right_counts
from verl_core.controller.seeds import draw_seed
from verl_core.controller.validate import validation_metrics

rewards_and_k = st.lists(st.sampled_from([0.0, 0.25, 1.0, -1.0, 2.0]), min_size=1, max_size=8).flatmap(
    lambda rewards: st.tuples(st.just(rewards), st.integers(1, len(rewards)))
)


def answer(source: str, reward: float, pred: str | None, sample: int, acc: float | None = None, question: str = "q"):
    return Answer(question, source, sample, reward, acc, pred, f"so {pred}", 3, "stop")


def test_one_answer_a_prompt_gives_the_mean_reward_by_source():
    groups = [[answer("a", 1, "x", 0)], [answer("a", 0, "y", 0)], [answer("b", 0.5, "z", 0)]]
    metrics = validation_metrics(groups, 0)
    assert metrics["val/test_score/a"] == 0.5
    assert metrics["val/test_score/b"] == 0.5
    assert not any(name.startswith("val-core") for name in metrics)


def test_mean_best_and_majority_of_n():
    first = [answer("a", r, p, k) for k, (r, p) in enumerate([(0, "7"), (1, "8"), (0, "7")])]
    second = [answer("a", r, p, k) for k, (r, p) in enumerate([(1, "5"), (1, "5"), (0, "6")])]
    metrics = validation_metrics([first, second], 0)
    assert metrics["val-core/a/reward/mean@3"] == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert metrics["val-core/a/reward/best@3"] == 1.0
    assert metrics["val-core/a/reward/maj@3"] == 0.5  # 7 (wrong) and 5 (right)


def test_accuracy_is_the_scorers_word_not_reward_equal_to_one():
    metrics = validation_metrics([[answer("a", 2.0, "x", 0, acc=1.0)], [answer("a", 0.5, "y", 0, acc=0.0)]], 0)
    assert metrics["val/acc/a"] == 0.5
    assert metrics["val/test_score/a"] == 1.25


def test_an_answer_counts_the_tokens_the_model_produced_and_keeps_why_scoring_failed():
    meta = {"data_source": "a", "pred": None, "answer": "text", "acc": None, "score_error": "timeout: 1 s"}
    made = answer_of(Trajectory([1, 2, 3], [0, 1, 1], [0.0] * 3, [-1, 0, 0], [], "0-4", 2, finish="length", meta=meta))
    assert made == Answer("0-4", "a", 2, 0.0, None, None, "text", 2, "length", "timeout: 1 s")


@given(rewards_and_k)
def test_best_at_k_is_the_mean_of_the_best_over_all_subsets(drawn):
    rewards, k = drawn
    assert best_at(rewards, k) == pytest.approx(fmean(max(own) for own in combinations(rewards, k)))


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(drawn):
    n, right, k = drawn
    marks = [True] * right + [False] * (n - right)
    assert pass_at(n, right, k) == pytest.approx(fmean(any(own) for own in combinations(marks, k)))


def test_estimators_by_hand_and_with_many_answers():
    assert pass_at(5, 2, 2) == pytest.approx(0.7)  # 1 - 3/10
    assert best_at([0.0, 1.0, 3.0], 2) == pytest.approx((1 + 3 + 3) / 3)
    assert best_at([0.1, 0.3, 0.2], 3) == 0.3
    assert pass_at(4096, 1, 2048) == pytest.approx(0.5)  # binomials far beyond a float
    assert best_at([0.0] * 4095 + [1.0], 2048) == pytest.approx(0.5)


def test_the_k_reported_are_powers_of_two_and_n():
    assert [ks_of(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@given(st.lists(st.sampled_from(["7", "8", "9", None]), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_the_majority_does_not_depend_on_the_order_of_the_answers(preds: list[str | None], draw: random.Random):
    group = [answer("a", float(k % 3), pred, k) for k, pred in enumerate(preds)]
    shuffled = draw.sample(group, len(group))
    assert majority(shuffled, 5) == pytest.approx(majority(group, 5))


def test_ties_are_broken_by_seed_and_question_and_not_by_order():
    def tied(question: str) -> list[Answer]:
        return [answer("a", 1.0, "right", 0, question=question), answer("a", 0.0, "wrong", 1, question=question)]

    over_questions = [majority(tied(f"0-{q}"), 0) for q in range(400)]
    assert 0.4 < fmean(over_questions) < 0.6  # first come, first served would give 1
    assert over_questions == [majority(tied(f"0-{q}"), 0) for q in range(400)]
    assert over_questions != [majority(tied(f"0-{q}"), 1) for q in range(400)]


def test_answers_without_a_readable_answer_have_no_vote_unless_none_has_one():
    unread = [answer("a", 0.0, None, k) for k in range(3)]
    assert majority([*unread, answer("a", 1.0, "7", 3)], 0) == 1.0
    texts = [
        Answer("q", "a", k, r, None, None, text, 1, "stop")
        for k, (r, text) in enumerate([(1, "x"), (1, "x"), (0, "y")])
    ]
    assert majority(texts, 0) == 1.0


def test_right_is_what_the_scorer_calls_accurate_and_grades_are_neither():
    assert right_counts([[answer("a", 5.0, "x", 0, acc=1.0), answer("a", 1.0, "x", 1, acc=0.0)]]) == [1]
    assert right_counts([[answer("a", 1.0, "x", 0), answer("a", 0.0, "x", 1)]]) == [1]
    assert right_counts([[answer("a", 0.5, "x", 0)]]) is None


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
