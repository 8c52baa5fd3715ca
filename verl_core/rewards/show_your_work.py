"""Scores the embedded task as GSM8K is scored: the number after the last `####` must be the gold number."""

from typing import Any

from verl_core.rewards import gsm8k


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> dict[str, Any]:
    """score and acc: 1 when the number after the last `####` is the gold number, else 0; format: 1 when there is one.

    Raises UnusableGold when the gold is no number.
    """
    return gsm8k.compute_score(data_source, solution_str, ground_truth, extra_info)
