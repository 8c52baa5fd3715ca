r"""Scores Geometry3k answers (Lu et al. 2021, arXiv 2105.04165) as veRL does: nine tenths for the answer in the box,
one tenth for the form `<think>...</think>` and then a box."""

from typing import Any

from verl_core.rewards.boxed import last_box
from verl_core.rewards.final_answer import after_thinking
from verl_core.rewards.math import gold_answers, judged
from verl_core.rewards.mathematics.symbolic import warm_up

__all__ = ["compute_score", "warm_up"]


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    accuracy_weight: float = 0.9,
    format_weight: float = 0.1,
) -> dict[str, Any]:
    """score: accuracy_weight x acc + format_weight x format; acc 1 or 0; pred: what the box holds.

    Raises UnusableGold when the gold is empty.
    """
    text = after_thinking(solution_str)
    verdict = judged(gold_answers(ground_truth), last_box(text), in_form=_in_form(solution_str))
    return {**verdict, "score": accuracy_weight * verdict["acc"] + format_weight * verdict["format"]}


def _in_form(text: str) -> bool:
    """One thought at the beginning, closed, and a box behind it."""
    begun = text.lstrip().startswith("<think>") and text.count("<think>") == text.count("</think>") == 1
    return begun and last_box(text.partition("</think>")[2]) is not None
