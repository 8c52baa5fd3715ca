r"""Scores answers of the DAPO and AIME data sets (Yu et al. 2025, arXiv 2503.14476), whose prompts ask for a last line
`Answer: X`.

The whole text is searched, where veRL looks at the last 300 characters, and answers are compared as in `math`.
"""

from typing import Any

from verl_core.rewards.boxed import last_box
from verl_core.rewards.final_answer import after_thinking
from verl_core.rewards.math import answer_line, gold_answers, judged
from verl_core.rewards.mathematics.symbolic import warm_up

__all__ = ["compute_score", "warm_up"]


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    wrong: float = 0.0,
) -> dict[str, Any]:
    """score 1 or `wrong` (veRL: -1); acc 1 or 0; pred: what follows the last "answer:", else the last box; format: 1
    when it followed "answer:".

    Raises UnusableGold when the gold is empty.
    """
    golds = gold_answers(ground_truth)
    text = after_thinking(solution_str)
    line = answer_line(text)
    verdict = judged(golds, line or last_box(text), in_form=line is not None)
    return verdict if verdict["acc"] else {**verdict, "score": float(wrong)}
