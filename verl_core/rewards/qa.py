"""Scores short answers to questions: exact match and F1 of words with the nearest gold answer, as SQuAD and Search-R1
(Jin et al. 2025, arXiv 2503.09516) do, in the spelling of `plain_text`.

The answer is what the last `<answer>` tag holds; without one, the rest of the line behind the last "answer:" or "answer
is"; else the last line. An empty answer is never right.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from verl_core.rewards.final_answer import after_answer_word, after_thinking, last_line, tagged
from verl_core.rewards.plain_text import normalised
from verl_core.rewards.verdict import UnusableGold

_WHOLE = ("yes", "no", "noanswer")  # HotpotQA (arXiv 1809.09600): beside another answer these share no words
LONGEST = 4096  # characters of an answer; a longer one answers no question shortly


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> dict[str, Any]:
    """score and acc: 1 for an exact match with one of the gold answers; pred: the answer; f1: the words' F1.

    ground_truth: a text, a list of texts of which any is right, or an object {"target": text or list}. Raises
    UnusableGold when none of them says anything.
    """
    golds = _golds(ground_truth)
    answer = _answer(solution_str)
    too_long = len(answer) > LONGEST
    pred = "" if too_long else normalised(answer)
    right = bool(pred) and pred in golds
    nothing = "answer too long" if too_long else "no answer found"
    return {
        "score": float(right),
        "acc": float(right),
        "pred": answer if pred else None,
        "reason": "right" if right else "wrong" if pred else nothing,
        "f1": max(_f1(pred, gold) for gold in golds),
        "format": float(tagged(after_thinking(solution_str)) is not None),
    }


def compute_f1(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> dict[str, Any]:
    """As `compute_score`, with the F1 as the score: a share of the reward for a share of the words."""
    verdict = compute_score(data_source, solution_str, ground_truth, extra_info)
    return verdict | {"score": verdict["f1"]}


def _answer(solution: str) -> str:
    shown = after_thinking(solution)
    for statement in (tagged(shown), after_answer_word(shown)):
        if statement is not None:
            return statement
    return last_line(shown)


def _golds(ground_truth: Any) -> set[str]:
    """The gold answers in the spelling to compare."""
    target = ground_truth.get("target") if isinstance(ground_truth, Mapping) else ground_truth
    listed = target if isinstance(target, list | tuple | set) else [target]
    golds = {normalised(str(gold)) for gold in listed if gold not in (None, "None")} - {""}
    if not golds:
        raise UnusableGold(ground_truth)
    return golds


def _f1(pred: str, gold: str) -> float:
    """Harmonic mean of the share of `pred`'s words that are in `gold` and the share of `gold`'s that are in `pred`."""
    if pred != gold and (pred in _WHOLE or gold in _WHOLE):
        return 0.0
    said, wanted = pred.split(), gold.split()
    common = (Counter(said) & Counter(wanted)).total()
    return 2 * common / (len(said) + len(wanted)) if common else 0.0
