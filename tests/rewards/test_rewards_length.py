"""Terms for length, against the papers' formulas and values worked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config.compose import resolve
from verl_core.config.errors import UserError
from verl_core.config.schema import LengthShapingConfig
from verl_core.rewards.length import length_terms


def terms(lengths, rights, **shaping):
    return length_terms(lengths, rights, 100, LengthShapingConfig(**shaping))


def test_group_form_as_kimi_k15_writes_it():
    assert terms([10, 20, 30, 50], [True] * 4, form="group") == [0.5, 0.25, 0.0, -0.5]
    assert terms([10, 20, 30, 50], [False] * 4, form="group") == [0.0, 0.0, 0.0, -0.5]
    assert terms([10, 50], [False, True], form="group", weight=2.0) == [0.0, -1.0]
    assert terms([7, 7], [True, False], form="group") == [0.0, 0.0]
    assert terms([7], [True], form="group") == [0.0]
    assert terms([], [], form="group") == []


def as_in_the_paper(n, max_tokens, at_none, at_most):
    """CosFn of arXiv 2502.03373: eta_min + (eta_max - eta_min) (1 + cos(t pi / T)) / 2, which is eta_max at t = 0."""
    return at_most + 0.5 * (at_none - at_most) * (1 + math.cos(n * math.pi / max_tokens))


@given(st.integers(0, 99), st.booleans())
def test_cosine_form_as_the_paper_writes_it(n, right):
    shaping = {"right": [2.0, 1.0], "wrong": [-10.0, 0.0], "exceeded": -10.0}
    ends = shaping["right"] if right else shaping["wrong"]
    (term,) = terms([n], [right], form="cosine", **shaping)
    assert term == pytest.approx(as_in_the_paper(n, 100, *ends), abs=1e-12)
    assert min(ends) <= term <= max(ends)
    assert terms([100], [right], form="cosine", **shaping) == [-10.0]


def test_curves_by_hand():
    assert terms([0, 50, 100], [True] * 3, form="linear") == [0.0, -0.25, -0.5]
    assert terms([0, 50, 100], [False] * 3, form="linear", weight=2.0) == [-1.0, -0.5, 0.0]
    assert terms([0, 50, 100], [True] * 3, form="cosine") == pytest.approx([0.0, -0.25, -0.5])
    assert terms([25], [True], form="cosine") == pytest.approx([-0.5 * (1 - math.sqrt(0.5)) / 2])
    assert terms([100, 120, 99], [True] * 3, form="linear", exceeded=-1.0)[:2] == [-1.0, -1.0]
    assert terms([120], [True], form="linear") == [-0.5]  # with a tool's text in it an answer may be longer


@given(st.integers(0, 100), st.integers(0, 100))
def test_by_default_no_wrong_answer_overtakes_a_right_one(n, m):
    for form in ("linear", "cosine", "group"):
        right, wrong = terms([n, m], [True, False], form=form)
        assert 1 + right >= 0 + wrong


@pytest.mark.parametrize("words", [["form=cosine", "right=[1]"], ["form=linear", "wrong=[1,2,3]"]])
def test_a_curve_has_two_ends(words):
    with pytest.raises(UserError, match=r"length_shaping\.\w+=.* is not two terms"):
        resolve("smoke", [f"reward.length_shaping.{word}" for word in words])


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        (["reward.length_shaping.weight=2"], "reward.length_shaping.weight"),
        (["reward.length_shaping.form=group", "reward.length_shaping.right=[0,1]"], "reward.length_shaping.right"),
        (["algorithm.name=ppo", "rollout.n=1", "reward.length_shaping.form=group"], "reward.length_shaping.form"),
        (["reward.length_shaping.form=linear", "reward.length_shaping.exceeded=0"], None),
    ],
)
def test_keys_without_effect_are_told(words, idle):
    told = [warning for warning in resolve("smoke", words).warnings if "length_shaping" in str(warning)]
    assert bool(told) == (idle is not None) and all(idle in str(warning) for warning in told)
