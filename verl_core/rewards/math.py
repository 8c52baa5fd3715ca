r"""Scores answers of mathematics (Hendrycks et al. 2021, arXiv 2103.03874, and what is written alike): the answer
stands in a box and is compared as text, then by value, at last symbolically.

Nothing of an answer is evaluated as code, and all but the last step takes bounded time. docs/rewards/math.md says what
counts as the same.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

from verl_core.rewards.boxed import last_box
from verl_core.rewards.final_answer import after_answer_word, after_thinking
from verl_core.rewards.mathematics.equality import same_answer
from verl_core.rewards.mathematics.symbolic import warm_up
from verl_core.rewards.verdict import UnusableGold

__all__ = ["compute_score", "gold_answers", "judged", "warm_up"]

Extract = Literal["boxed", "answer_line", "flexible"]

_FORMULA = re.compile(r"\$\$?([^$]{1,400})\$|\\\(([^$]{1,400}?)\\\)|\\\[([^$]{1,400}?)\\\]")
_NUMBER = re.compile(r"(?<![\w.)])[-\N{MINUS SIGN}]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    extract: Extract = "boxed",
) -> dict[str, Any]:
    r"""score and acc 1 or 0; pred: the answer as written; format: 1 when it stood in the asked form.

    What is within `<think>` is no answer. extract "boxed": the last box (form: the box); "answer_line": behind the last
    "answer:" or "answer is", else the last box (form: the line); "flexible": the box, else that line, else what follows
    the last `####`, else the last formula, else the last number (form: the box). `ground_truth`: a text, boxed or
    plain, or a list of texts of which any is right.
    Raises UnusableGold when the gold is empty; ValueError for another `extract`.
    """
    if extract not in _WAYS:
        raise ValueError(f"math: extract is {extract!r}, not {', '.join(_WAYS)}")
    golds = gold_answers(ground_truth)
    text = after_thinking(solution_str)
    for i, way in enumerate(_WAYS[extract]):
        if pred := way(text):
            return judged(golds, pred, in_form=i == 0)
    return judged(golds, None, in_form=False)


def gold_answers(ground_truth: Any) -> tuple[str, ...]:
    """The right answers, out of their boxes. Raises UnusableGold when there is none, or an empty one."""
    several = isinstance(ground_truth, Iterable) and not isinstance(ground_truth, str | bytes | dict)
    texts = ["" if gold is None else str(gold).strip() for gold in (ground_truth if several else [ground_truth])]
    answers = tuple(_unboxed(text) for text in texts)
    if not answers or not all(answer.strip("$ .{}") and answer != "None" for answer in answers):
        raise UnusableGold(ground_truth)
    return answers


def _unboxed(text: str) -> str:
    """What a gold text's box holds, empty for an empty or broken one; a text without a box as it is."""
    return (last_box(text) or "") if "\\boxed" in text or "\\fbox" in text else text


def judged(golds: tuple[str, ...], pred: str | None, in_form: bool) -> dict[str, Any]:
    """The verdict on an answer that was found, or on None."""
    right = pred is not None and any(same_answer(gold, pred) for gold in golds)
    reason = "right" if right else "no answer found" if pred is None else "wrong"
    return {"score": float(right), "acc": float(right), "pred": pred, "reason": reason, "format": float(in_form)}


def answer_line(text: str) -> str | None:
    """What stands behind the last "answer:", out of its box."""
    line = after_answer_word(text)
    return (last_box(line) or line) if line else None


def _after_mark(text: str) -> str | None:
    _, mark, rest = text.rpartition("####")
    return rest.strip().partition("\n")[0] if mark else None


def _last_formula(text: str) -> str | None:
    last = None
    for last in _FORMULA.finditer(text):  # noqa: B007 (the last match is wanted)
        pass
    return None if last is None else last[1] or last[2] or last[3]


def _last_number(text: str) -> str | None:
    last = None
    for last in _NUMBER.finditer(text):  # noqa: B007
        pass
    return None if last is None else last.group()


_WAYS: dict[str, tuple[Callable[[str], str | None], ...]] = {
    "boxed": (last_box,),
    "answer_line": (answer_line, last_box),
    "flexible": (last_box, answer_line, _after_mark, _last_formula, _last_number),
}
