"""Scores what `rlx prepare reasoning-gym:TASK` made: by the task's own verifier, of which `reasoning_gym_tasks` says
what is replaced."""

import json
from typing import Any

from verl_core.rewards import countdown
from verl_core.rewards.final_answer import after_thinking, last_line, tagged
from verl_core.rewards.reasoning_gym_tasks import PREFIX, disarm, unpacked, verifier
from verl_core.rewards.verdict import UnusableGold

_COMPARED = frozenset(["game_of_life_halting"])
"""Tasks whose verifier takes any text for right (it compares `bool(answer)`): the answer has to be theirs."""
_GIVEN_NUMBERS = frozenset(["countdown", "puzzle24"])
"""Tasks whose verifier takes what is wrong for right: other numbers than the problem's, 24.5 for 24, and `pi/pi` beside
the given numbers. The rule `countdown` judges them."""


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
    shown = after_thinking(solution_str)
    inside = tagged(shown)
    answer = inside if inside is not None else last_line(shown)
    score, reason = _verified(data_source.removeprefix(PREFIX), settings, answer, entry)
    return {
        "score": score,
        "acc": float(score == 1),
        "pred": answer[:200] or None,
        "reason": reason,
        "format": float(inside is not None),
    }


def warm_up() -> None:
    """Imports the library, which takes seconds."""
    disarm()


def _verified(task: str, settings: str, answer: str, entry: dict[str, Any]) -> tuple[float, str]:
    """The score and why. A verifier that an answer makes raise has not been given what it asked for."""
    if task in _GIVEN_NUMBERS:
        problem = entry.get("metadata", {})
        gold = {"target": problem.get("target", 24), "numbers": problem.get("numbers")}
        verdict = countdown.compute_score("", f"<answer>{answer}</answer>", gold)
        return verdict["score"], verdict["reason"] if answer else "no answer found"
    dataset = verifier(task, settings)
    if task in _COMPARED:
        score = float(answer.casefold() == entry["answer"].casefold())
    else:
        try:
            score = min(max(float(dataset.score_answer(answer or None, entry)), 0.0), 1.0)
        except MemoryError:
            raise
        except Exception:
            return 0.0, "nothing that the task's verifier can read"
    if score == 1:
        return score, "right"
    return score, "wrong" if answer else "no answer found"
