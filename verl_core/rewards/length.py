"""Shapes rewards by the lengths of answers: along a curve, or against the other answers to the same prompt."""

import math
from collections.abc import Sequence

from verl_core.config.schema import LengthShapingConfig


def length_terms(
    lengths: Sequence[int], right: Sequence[bool], max_tokens: int, shaping: LengthShapingConfig
) -> list[float]:
    """What is added to the reward of each answer to one prompt: `lengths` in tokens, `right` by the task.

    linear, cosine ("Demystifying Long Chain-of-Thought Reasoning in LLMs", arXiv 2502.03373, section 3): from the first
    value of `shaping.right` or `.wrong` at no tokens to the second at `max_tokens`, where `exceeded` takes its place.
    group (Kimi k1.5, arXiv 2501.12599, section 2.3.3): from 0.5 for the shortest answer to -0.5 for the longest, for
    wrong answers at most 0; 0 when all are equally long.
    """
    if shaping.form == "group":
        terms = _relative(lengths, right)
    else:
        terms = [_along_the_curve(n, ok, max_tokens, shaping) for n, ok in zip(lengths, right, strict=True)]
    return [shaping.weight * term for term in terms]


def _relative(lengths: Sequence[int], right: Sequence[bool]) -> list[float]:
    shortest = min(lengths, default=0)
    spread = max(lengths, default=0) - shortest
    if spread == 0:
        return [0.0] * len(lengths)
    centred = (0.5 - (n - shortest) / spread for n in lengths)
    return [term if ok else min(0.0, term) for term, ok in zip(centred, right, strict=True)]


def _along_the_curve(n: int, right: bool, max_tokens: int, shaping: LengthShapingConfig) -> float:
    if n >= max_tokens and shaping.exceeded is not None:
        return shaping.exceeded
    at_none, at_most = shaping.right if right else shaping.wrong
    share = min(n / max_tokens, 1.0)
    if shaping.form == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    return at_none + (at_most - at_none) * share
