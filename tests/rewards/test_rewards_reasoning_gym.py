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
    st.sampled_from(["__tuple__", "__items__"]), st.text(max_size=3), st.integers(), st.tuples(st.integers())
)
ENTRIES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
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


def test_the_absent_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    disarm.cache_clear()
    with pytest.raises(EnvError, match="reasoning-gym cannot be imported"):
        warm_up()
