"""Scores GSM8K answers (Cobbe et al. 2021, arXiv 2110.14168): the answer is a number, written after `####`.

The whole text is searched, and numbers are compared by value as written, so `18.0`, `18.`, `$18` and `1,000` are what
a reader takes them for, while `1/2` is not 1 and `5-3` is not 5. Nothing is evaluated, and every pattern is linear.
"""

import re
from typing import Any, Literal

from verl_core.rewards.boxed import last_box
from verl_core.rewards.final_answer import after_thinking
from verl_core.rewards.numbers import DECORATION, SIGN, last_number, leading_number
from verl_core.rewards.verdict import UnusableGold

Method = Literal["strict", "boxed", "flexible"]

_MARKED = re.compile(rf"####{DECORATION}(?={SIGN}?[$£€]?\.?\d)")


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    method: Method = "strict",
) -> dict[str, Any]:
    r"""score and acc 1 or 0; pred: what was taken for the answer, numbers in one spelling so that votes can be
    counted; format: 1 when it stood in the asked form.

    method "strict": the number after the last `####` (form: `####`); "boxed": the content of the last `\boxed{}` or
    `\fbox{}` (form: the box), compared as a number or else as text; "flexible": the `####` answer where there is one,
    else the box, else the last number of the text (form: `####`).
    Raises UnusableGold when the gold answer is empty or, outside "boxed", no number; ValueError for another method.
    """
    if method not in ("strict", "boxed", "flexible"):
        raise ValueError(f"gsm8k: method is {method!r}, not strict, boxed or flexible")
    gold = _gold(ground_truth, method)
    text = after_thinking(solution_str)
    marked = None if method == "boxed" else _marked(text)
    boxed = None if method == "strict" or marked is not None else last_box(text)
    pred = marked if marked is not None else boxed
    if method == "flexible" and pred is None:
        pred = last_number(text)
    if pred is not None:
        pred = leading_number(pred) or pred.strip()
    right = pred == gold
    in_form = (boxed if method == "boxed" else marked) is not None
    reason = "right" if right else "no answer found" if pred is None else "wrong"
    return {"score": float(right), "acc": float(right), "pred": pred, "reason": reason, "format": float(in_form)}


def _gold(ground_truth: Any, method: Method) -> str:
    text = "" if ground_truth is None else str(ground_truth).strip()
    number = leading_number(text)
    if not text or text == "None" or (number is None and method != "boxed"):
        raise UnusableGold(ground_truth)
    return number or text


def _marked(text: str) -> str | None:
    """What follows the last `####` that a number follows, to the end of its line. Headings (`#### Step 1`) are none."""
    last = None
    for last in _MARKED.finditer(text):  # noqa: B007 (the last match is wanted)
        pass
    return None if last is None else text[last.end() :].split("\n", 1)[0].rstrip()
