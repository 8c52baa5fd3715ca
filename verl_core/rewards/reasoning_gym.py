"""Scores what `rlx prepare reasoning-gym:TASK` made: by the task's own verifier, of which `reasoning_gym_tasks` says
what is replaced."""

import json
from typing import Any

from verl_core.rewards.final_answer import after_thinking, last_line, tagged
from verl_core.rewards.reasoning_gym_tasks import PREFIX, disarm, unpacked, verifier
from verl_core.rewards.verdict import UnusableGold


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> dict[str, Any]:
    """score: what the task's verifier gives, from 0 to 1; acc: 1 when that is 1, else 0; format: 1 when there is an
    answer between `<answer>` tags.

    The row keeps what the verifier needs in `extra_info.reasoning_gym`, as JSON: {"settings": {...}, "entry": {...}};
    the task is what stands behind `reasoning_gym/` in its data source. The answer is what the last `<answer>` holds,
    else the last line after the thoughts. Raises UnusableGold for a row without the entry.
    """
    try:
        kept = json.loads((extra_info or {})["reasoning_gym"])
        entry, settings = unpacked(kept["entry"]), json.dumps(kept["settings"], sort_keys=True)
    except (KeyError, TypeError, ValueError) as e:
        raise UnusableGold(ground_truth) from e
    inside = tagged(solution_str)
    answer = inside if inside is not None else last_line(after_thinking(solution_str))
    given = verifier(data_source.removeprefix(PREFIX), settings).score_answer(answer or None, entry)
    score = min(max(float(given), 0.0), 1.0)
    right = float(score == 1)
    return {
        "score": score,
        "acc": right,
        "pred": answer[:200] or None,
        "reason": _reason(answer, score),
        "format": float(inside is not None),
    }


def warm_up() -> None:
    """Imports the library, which takes seconds."""
    disarm()


def _reason(answer: str, score: float) -> str:
    if score == 1:
        return "right"
    return "wrong" if answer else "no answer found"
