"""The penalty of answers that come near the length limit (DAPO, arXiv 2503.14476, eq. 13)."""

from verl_core.config.schema import OverlongBufferConfig


def overlong_penalty(n_tokens: int, max_tokens: int, buffer: OverlongBufferConfig) -> float:
    """What is added to the reward of an answer of `n_tokens`: 0 up to max_tokens - buffer.len, from there linearly down
    to -buffer.penalty_factor at max_tokens."""
    excess = n_tokens - (max_tokens - buffer.len)
    return -buffer.penalty_factor * (max(excess, 0) / buffer.len)  # never below -penalty_factor by rounding
