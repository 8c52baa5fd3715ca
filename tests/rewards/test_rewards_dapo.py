import pytest

from verl_core.config.catalogue import implementation
from verl_core.config.scorers import scorer_of
from verl_core.rewards import dapo_math, geometry, math
from verl_core.rewards.verdict import UnusableGold


def verdict(text, gold, **kwargs):
    return dapo_math.compute_score("math_dapo", text, gold, **kwargs)


@pytest.mark.parametrize(
    ("text", "gold", "right", "form"),
    [
        ("Answer: 34", "34", 1, 1),
        ("answer:34", "34", 1, 1),
        ("**Answer: 34**", "34", 1, 1),
        ("Answer: $34$", "34", 1, 1),
        ("Answer: $\\boxed{34}$", "34", 1, 1),
        ("Answer: 34.", "34", 1, 1),
        ("Answer: 034", "34", 1, 1),
        ("Answer: 33\nAnswer: 34", "34", 1, 1),
        ("Answer: 34\nAnswer: 33", "34", 0, 1),
        ("Answer: 34" + "\nas was to be shown" * 60, "34", 1, 1),  # 300 characters later it is still the answer
        ("Answer: 34 or 35", "34", 0, 1),
        ("Answer: 3, 4", "34", 0, 1),
        ("so \\boxed{34}" + " and so on" * 60, "34", 1, 0),
        ("Answer: 33\n\\boxed{34}", "34", 0, 1),
        ("<think>Answer: 34</think>\nAnswer: 33", "34", 0, 1),
        ("<think>Answer: 34", "34", 0, 0),
        ("34", "34", 0, 0),
        ("Answer:", "34", 0, 0),
        ("", "34", 0, 0),
        ("Answer: \\frac{1}{2}", "0.5", 1, 1),
    ],
)
def test_the_answer_is_what_follows_the_last_answer_else_the_last_box(text, gold, right, form):
    found = verdict(text, gold)
    assert (found["score"], found["acc"], found["format"]) == (right, right, form)


def test_a_wrong_answer_costs_what_is_set():
    assert verdict("Answer: 3", "4", wrong=-1)["score"] == verdict("", "4", wrong=-1)["score"] == -1
    assert verdict("Answer: 3", "4", wrong=-1)["acc"] == 0
    assert verdict("Answer: 4", "4", wrong=-1)["score"] == 1


@pytest.mark.parametrize("gold", [None, "", []])
def test_an_unusable_gold_is_said(gold):
    with pytest.raises(UnusableGold):
        verdict("Answer: 3", gold)
    with pytest.raises(UnusableGold):
        geometry.compute_score("hiyouga/geometry3k", r"\boxed{3}", gold)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("math_dapo", dapo_math),
        ("math_dapo_reasoning", dapo_math),
        ("aime2024", dapo_math),
        ("aime_2025", dapo_math),
        ("numina_olympiads", math),
        ("HuggingFaceH4/MATH-500", math),
        ("lighteval/MATH", math),
        ("DigitalLearningGmbH/MATH-lighteval", math),
        ("hiyouga/geometry3k", geometry),
    ],
)
def test_data_sources_have_their_rule(source, rule):
    assert implementation("scorer", scorer_of(source).name) is rule.compute_score


@pytest.mark.parametrize(
    ("text", "gold", "score", "form"),
    [
        (r"<think>a</think> \boxed{3\sqrt{2}}", r"\sqrt{18}", 1.0, 1),
        (r" <think>a</think>\boxed{3}", "4", 0.1, 1),
        (r"\boxed{4}", "4", 0.9, 0),
        (r"<think>\boxed{4}</think>", "4", 0, 0),
        (r"<think>a</think> 4", "4", 0, 0),
        (r"first <think>a</think>\boxed{4}", "4", 0.9, 0),
        (r"<think>a</think><think>b</think>\boxed{4}", "4", 0.9, 0),
        (r"<think>a \boxed{4}", "4", 0, 0),
        (r"<think>a</think> \boxed{12 \text{ cm}}", "12", 1.0, 1),
        ("", "4", 0, 0),
    ],
)
def test_geometry_pays_for_the_answer_and_the_form(text, gold, score, form):
    found = geometry.compute_score("hiyouga/geometry3k", text, gold)
    assert (found["score"], found["format"]) == (pytest.approx(score), form)


def test_the_weights_of_geometry_are_keywords():
    def score(text):
        return geometry.compute_score("", text, "4", accuracy_weight=1, format_weight=0.5)["score"]

    assert score(r"<think>a</think>\boxed{4}") == 1.5
    assert score(r"<think>a</think>\boxed{5}") == 0.5
