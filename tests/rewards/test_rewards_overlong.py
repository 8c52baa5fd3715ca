"""The penalty of long answers, against its three cases as the paper writes them (arXiv 2503.14476, eq. 13)."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config.schema import OverlongBufferConfig
from verl_core.rewards.overlong import overlong_penalty


def as_in_the_paper(n_tokens: int, max_tokens: int, buffer: int) -> Fraction:
    """0, then falling, then -1."""
    if n_tokens <= max_tokens - buffer:
        return Fraction(0)
    if n_tokens <= max_tokens:
        return Fraction((max_tokens - buffer) - n_tokens, buffer)
    return Fraction(-1)


@given(st.data())
def test_it_is_the_papers(data):
    max_tokens = data.draw(st.integers(1, 30_000))
    buffer = data.draw(st.integers(1, max_tokens))
    n_tokens = data.draw(st.integers(0, max_tokens))
    factor = data.draw(st.floats(0, 10))
    penalty = overlong_penalty(n_tokens, max_tokens, OverlongBufferConfig(True, buffer, factor))
    assert penalty == pytest.approx(factor * float(as_in_the_paper(n_tokens, max_tokens, buffer)), rel=1e-12, abs=1e-12)
    assert -factor <= penalty <= 0


@pytest.mark.parametrize(
    ("n_tokens", "penalty"), [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20480, -1.0)]
)
def test_the_papers_own_lengths(n_tokens, penalty):
    assert overlong_penalty(n_tokens, 20480, OverlongBufferConfig(True, 4096)) == penalty
