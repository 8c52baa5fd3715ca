"""Scores the embedded task: the last `#### N` must be the gold number."""

import re
from typing import Any

from verl_core.rewards.verdict import UnusableGold

_ANSWER = re.compile(r"####\s*(-?\d+)")


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> dict[str, Any]:
    """score and acc: 1 when the last `#### N` is the gold number, else 0; format: 1 when there is a `#### N`."""
    if not str(ground_truth or "").strip():
        raise UnusableGold(ground_truth)
    answers = _ANSWER.findall(solution_str)
    right = bool(answers) and answers[-1] == str(ground_truth)
    return {
        "score": float(right),
        "acc": float(right),
        "pred": answers[-1] if answers else None,
        "format": float(bool(answers)),
    }
