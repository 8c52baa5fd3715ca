"""Rows of reasoning-gym without the package: what they keep, and what is said. With it: tests/e2e."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config.errors import EnvError
from verl_core.rewards.reasoning_gym import compute_score, warm_up
from verl_core.rewards.reasoning_gym_tasks import disarm, packed, unpacked
from verl_core.rewards.verdict import UnusableGold

KEYS = st.one_of(
    st.sampled_from(["__tuple__", "__items__", "__fraction__"]),
    st.text(max_size=3),
    st.integers(),
    st.tuples(st.integers()),
)
ENTRIES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.fractions(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=10,
)


@given(ENTRIES)
def test_an_entry_comes_back_from_json_as_it_was(entry):
    found = unpacked(json.loads(json.dumps(packed(entry))))
    assert found == entry and repr(found) == repr(entry)


def test_a_row_without_its_entry_is_at_fault():
    for extra in (None, {}, {"reasoning_gym": None}, {"reasoning_gym": "{"}, {"reasoning_gym": "{}"}):
        with pytest.raises(UnusableGold):
            compute_score("reasoning_gym/gcd", "<answer>1</answer>", "1", extra)


def reward(task, numbers, answer, **metadata):
    entry = {"question": "", "answer": "", "metadata": {"numbers": numbers, **metadata}}
    kept = {"reasoning_gym": json.dumps({"settings": {}, "entry": packed(entry)})}
    return compute_score(f"reasoning_gym/{task}", f"<answer>{answer}</answer>", "", kept)["score"]


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("8*4 - 10 + 2", 1.0),
        ("2 - 10 + 4*8 = 24", 1.0),
        ("6*4*1*1", 0.0),  # numbers of no problem, which the library pays for every one
        ("sin(8*pi) + sin(4*pi) + sin(10*pi) + sin(2*pi)" + " + pi/pi" * 24, 0.0),
        ("8*4 - 10 + 2 + x/x - y/y", 0.0),
        ("", 0.0),
    ],
)
def test_given_numbers_make_the_value_and_nothing_else_does(answer, score):
    assert reward("puzzle24", [8, 4, 10, 2], answer) == score
    assert reward("countdown", [8, 4, 10, 2], answer, target=24) == score


def test_a_value_that_is_cut_off_is_not_the_target():
    assert reward("puzzle24", [7, 7, 2, 1], "7*7/2*1") == 0.0


def test_the_absent_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    disarm.cache_clear()
    with pytest.raises(EnvError, match="reasoning-gym cannot be imported"):
        warm_up()
