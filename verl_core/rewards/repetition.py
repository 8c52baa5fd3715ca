"""Penalises an answer that repeats itself, by the share of its n-grams that it has said before: what long answers do to
collect a reward for length ("Demystifying Long Chain-of-Thought Reasoning in LLMs", Yeo et al. 2025, arXiv 2502.03373,
which penalises the single tokens of repeated n-grams)."""

from collections.abc import Sequence
from typing import Any, Literal

Unit = Literal["words", "characters"]


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any = None,
    extra_info: dict[str, Any] | None = None,
    n: int = 20,
    penalty: float = 1.0,
    unit: Unit = "words",
) -> dict[str, Any]:
    """score: from 0, when no n-gram comes twice, down towards -penalty, when the answer is one phrase over and over;
    repeated: the share of n-grams that have come before, in [0, 1).

    n: units in a phrase that counts; shorter answers repeat nothing. unit: "words" (what blanks separate), or
    "characters", for scripts without blanks. Raises ValueError for values outside these.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n is {n!r}, not a whole number from 1 on")
    if not 0 <= penalty < float("inf"):
        raise ValueError(f"penalty is {penalty!r}, not a number >= 0")
    if unit not in ("words", "characters"):
        raise ValueError(f"unit is {unit!r}, not words or characters")
    grams = _ngrams(solution_str.split() if unit == "words" else solution_str, n)
    repeated = 1 - len(set(grams)) / len(grams) if grams else 0.0
    reason = "repeats itself" if repeated else "no repetition"
    return {"score": 0.0 - penalty * repeated, "acc": None, "pred": None, "reason": reason, "repeated": repeated}


def _ngrams(units: Sequence[str], n: int) -> list[int]:
    """One number for each n-gram, equal where they are. Each round doubles the length that a number stands for, so that
    a large n costs neither memory nor much time."""
    numbers: dict[Any, int] = {}
    grams = [numbers.setdefault(unit, len(numbers)) for unit in units]
    length = 1
    while length < n and grams:
        step = min(length, n - length)
        numbers = {}
        grams = [numbers.setdefault(pair, len(numbers)) for pair in zip(grams, grams[step:], strict=False)]
        length += step
    return grams
