"""Scores Countdown: an expression of the given numbers, each used once, that equals the target."""

import json
import re
from collections import Counter
from fractions import Fraction
from typing import Any

from verl_core.rewards.arithmetic import NotArithmetic, Worked, plain, work_out
from verl_core.rewards.boxed import last_box
from verl_core.rewards.final_answer import after_thinking, tagged
from verl_core.rewards.verdict import UnusableGold

_COMMAND = r"\\(?:times|cdot|div|[dt]?frac)(?![a-z])"
_RUN = re.compile(rf"(?:[\d\s+\-*/(){{}}=]|{_COMMAND})+")
_OPERATION = re.compile(rf"\d[\s()}}]*(?:[-+*/]|{_COMMAND})|\\[dt]?frac")
_ITEM = re.compile(r"\s*\d{1,3}[.)]\s")  # the number of a line in a list
_DECORATION = " \t\r\n$`*.,;:"


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    at_most_once: bool = False,
) -> dict[str, Any]:
    """score and acc: 1 when the answer uses every given number exactly once and equals the target, else 0; format: 1
    when there is an answer between `<answer>` tags.

    ground_truth: `{"target": int, "numbers": [int, ...]}`, or that as JSON. at_most_once: numbers may be left over.
    The answer is what the last `<answer>` holds, else the last box, else the last expression after the thoughts. It
    may end in `= target`, which then has to hold as well. Values are exact: 1/3*3 is 1.
    Raises UnusableGold for a ground truth without a target and numbers.
    """
    target, numbers = _gold(ground_truth)
    shown = after_thinking(solution_str)
    inside = tagged(shown)
    answer = inside if inside is not None else _elsewhere(shown)
    reason = _judge(answer, target, numbers, at_most_once)
    right = float(reason == "right")
    return {
        "score": right,
        "acc": right,
        "pred": None if answer is None else answer[:200],
        "reason": reason,
        "format": float(inside is not None),
    }


def _gold(ground_truth: Any) -> tuple[Fraction, Counter[int]]:
    try:
        gold = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
        target, numbers = gold["target"], list(gold["numbers"])
        usable = numbers and all(isinstance(n, int) and not isinstance(n, bool) for n in (target, *numbers))
    except (ValueError, TypeError, KeyError):
        usable = False
    if not usable:
        raise UnusableGold(ground_truth)
    return Fraction(target), Counter(numbers)


def _elsewhere(shown: str) -> str | None:
    """The answer of a text without answer tags: the last box, else the last expression of the last line with any."""
    if (box := last_box(shown)) is not None:
        return box
    for line in reversed(shown.splitlines()):
        runs = [run.strip(" =") for run in _RUN.findall(_plain(_unnumbered(line))) if _OPERATION.search(run)]
        if runs:
            return runs[-1]
    return None


def _unnumbered(line: str) -> str:
    item = _ITEM.match(line)
    return line[item.end() :] if item else line


def _plain(text: str) -> str:
    r"""With one spelling an operator, and without the \\( and \\[ that LaTeX puts around a formula."""
    return re.sub(r"\\[()]", " ", plain(text))


def _judge(answer: str | None, target: Fraction, given: Counter[int], at_most_once: bool) -> str:
    if answer is None:
        return "no answer found"
    expression, equals, claimed = _plain(answer).strip(_DECORATION).partition("=")
    try:
        worked = work_out(expression.strip(_DECORATION))
        if equals and work_out(claimed.strip(_DECORATION)).value != worked.value:
            return "an equation that does not hold"
    except NotArithmetic as e:
        return str(e)
    return _compare(worked, target, given, at_most_once)


def _compare(worked: Worked, target: Fraction, given: Counter[int], at_most_once: bool) -> str:
    used = Counter(worked.numbers)
    if used - given:
        return "a number that is not given, or used too often"
    if given - used and not at_most_once:
        return "a given number left out"
    return "right" if worked.value == target else "not the target"
