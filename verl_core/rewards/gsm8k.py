"""Scores GSM8K answers (Cobbe et al. 2021, arXiv 2110.14168): the answer is a number, written after `####`.

The whole text is searched, and numbers are compared by value as written, so `18.0`, `18.`, `$18` and `1,000` are what
a reader takes them for, while `1/2` is not 1 and `5-3` is not 5. Nothing is evaluated, and every pattern is linear.
"""

import re
from typing import Any, Literal

from verl_core.rewards.verdict import UnusableGold

Method = Literal["strict", "boxed", "flexible"]

_DECORATION = r"[\s*_$£€\\]*"  # what may stand between `####` and the number: spaces, bold, currency, LaTeX's \$
_SIGN = r"[-+\N{MINUS SIGN}]"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = rf"(?P<sign>{_SIGN})?[$£€]?(?P<digits>{_DIGITS})(?:/(?P<divisor>\d+))?"
_MARKED = re.compile(rf"####{_DECORATION}(?={_SIGN}?[$£€]?\.?\d)")
_LEADING = re.compile(rf"{_DECORATION}{_NUMBER}")
_ANYWHERE = re.compile(rf"(?:(?<![\w)])(?P<sign>{_SIGN}))?[$£€]?(?P<digits>{_DIGITS})(?:/(?P<divisor>\d+))?")
# A number that goes on as a calculation (5-3, 2*4, 10-3=7), a list (3,4), a time (5:30), a version (1.2.3) or a power
# of ten (1e3) is none.
_GOES_ON = re.compile(r"[ \t]*[-+*/^=x×÷\N{MINUS SIGN}][ \t]*[\d(.]|[,.:/]\d|[eE][-+]?\d")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


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
    marked = None if method == "boxed" else _marked(solution_str)
    boxed = None if method == "strict" or marked is not None else _boxed(solution_str)
    pred = marked if marked is not None else boxed
    if method == "flexible" and pred is None:
        pred = _last_number(solution_str)
    if pred is not None:
        pred = _leading_number(pred) or pred.strip()
    right = pred == gold
    in_form = (boxed if method == "boxed" else marked) is not None
    return {"score": float(right), "acc": float(right), "pred": pred, "format": float(in_form)}


def _gold(ground_truth: Any, method: Method) -> str:
    text = "" if ground_truth is None else str(ground_truth).strip()
    number = _leading_number(text)
    if not text or text == "None" or (number is None and method != "boxed"):
        raise UnusableGold(ground_truth)
    return number or text


def _marked(text: str) -> str | None:
    """What follows the last `####` that a number follows, to the end of its line. Headings (`#### Step 1`) are none."""
    last = None
    for last in _MARKED.finditer(text):  # noqa: B007 (the last match is wanted)
        pass
    return None if last is None else text[last.end() :].split("\n", 1)[0].rstrip()


def _boxed(text: str) -> str | None:
    """The content of the last box, braces balanced; None when there is no box or it is not closed."""
    opening = None
    for opening in _BOX.finditer(text):  # noqa: B007
        pass
    if opening is None:
        return None
    depth = 1
    for brace in re.finditer(r"[{}]", text[opening.end() :]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[opening.end() : opening.end() + brace.start()]
    return None


def _leading_number(text: str) -> str | None:
    """The number that `text` starts with, in canonical form; None when it goes on as something else."""
    found = _LEADING.match(text)
    return None if found is None or _GOES_ON.match(text, found.end()) else _canonical(found)


def _last_number(text: str) -> str | None:
    last = None
    for last in _ANYWHERE.finditer(text):  # noqa: B007
        pass
    return None if last is None else _canonical(last)


def _canonical(number: re.Match[str]) -> str:
    """The number with one spelling a value: no sign but -, no commas, no idle zeros. Kept as text: it may be long."""
    whole, _, decimals = number["digits"].replace(",", "").partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    value = f"{whole}.{decimals}" if decimals else whole
    sign = "-" if number["sign"] in ("-", "\N{MINUS SIGN}") and value != "0" else ""
    return f"{sign}{value}/{number['divisor']}" if number["divisor"] else f"{sign}{value}"
