"""Scores the choice of one option among several: the letter that the answer settles on must be the gold one.

What is read is the answer's last statement: the last `<answer>` tag; without one the last box; without one the rest of
the line behind the last "answer:" or "answer is", where it names a letter; else the last line that names one. A
statement that names several letters ("A or B"), a list of options, and what says what the answer is not ("not C")
settle on none.
"""

import re
from collections.abc import Sequence
from typing import Any

from verl_core.rewards.boxed import last_box
from verl_core.rewards.final_answer import after_answer_word, after_thinking, last_line, tagged
from verl_core.rewards.plain_text import normalised
from verl_core.rewards.verdict import UnusableGold

LETTERS = "ABCDEFGHIJ"
LONGEST = 4096  # characters of a statement; a longer one settles on nothing
NOTHING, SEVERAL, DENIED = "no answer found", "several answers", "says what it is not"

_EITHER = f"[{LETTERS}{LETTERS.lower()}]"
# "A dog" and "I think" are words, "A is right" and "A or B" are letters.
_WORD = r"(?<=[AI])\s+(?!(?:is|was|or|and|nor|but|by|because|since|as|if|not|would|seems|fits|isn|wasn|can)\b)[a-z]"
_BARE = rf"(?<![\w'’\\\-])[{LETTERS}](?![\w'’\-])(?!{_WORD})"
_MARKED = rf"[(\[]\s*{_EITHER}\s*[)\]]|(?<![\w'’\-]){_EITHER}\)"
_NAMED = re.compile(rf"{_MARKED}|{_BARE}")
_ALONE = re.compile(rf"[^\w\\]*(?:(?:option|choice)\b[^\w\\]*)?({_EITHER})\W*", re.IGNORECASE)
_ITEM = re.compile(rf"\W*(?:(?:option|choice)\b\W*)?({_EITHER})[).:\]]\W*", re.IGNORECASE)
_DENIED_BEFORE = re.compile(
    r"\b(?:not|neither|nor|never|except|cannot|without|\w+n['’]t|rather than|other than)\b", re.I
)
_DENIED_AFTER = re.compile(
    r"\s+(?:\w+\s+)?(?:not\b|cannot\b|\w*n['’]t\b|(?:is|was)\s+(?:wrong|false|incorrect)\b)", re.I
)
_REASON = re.compile(r"\b(?:because|since)\b", re.IGNORECASE)
_MARKUP = str.maketrans("", "", "*_`$")


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> dict[str, Any]:
    """score and acc: 1 when the letter is the gold one; pred: the letter; format: 1 when the answer settles on one.

    ground_truth: a letter, the option's index from 0 (a number, or its digits), or the option's text, for which the
    row needs its options in extra_info["choices"]. With them an answer may also be the text of an option, and only the
    letters that have one count. Raises UnusableGold for a gold that is none of these, or could be two.
    """
    choices = [str(choice) for choice in (extra_info or {}).get("choices") or ()][: len(LETTERS)]
    gold = _gold(ground_truth, choices)
    pred, reason = _settled(solution_str, choices)
    right = pred == gold
    if pred is not None:
        reason = "right" if right else "wrong"
    return {
        "score": float(right),
        "acc": float(right),
        "pred": pred,
        "reason": reason,
        "format": float(pred is not None),
    }


def _gold(ground_truth: Any, choices: Sequence[str]) -> str:
    """The gold letter."""
    letters = LETTERS[: len(choices)] or LETTERS
    text = "" if ground_truth is None else str(ground_truth).strip()
    index = int(text) if text.isdecimal() and len(text) < 3 else len(letters)
    if isinstance(ground_truth, int) and index < len(letters):
        return letters[index]  # a number is an index, whatever the options say
    readings = set(_options(text, choices))
    if len(text) == 1 and text.upper() in letters:
        readings.add(text.upper())
    elif index < len(letters):
        readings.add(letters[index])
    if len(readings) != 1:
        raise UnusableGold(ground_truth)
    return readings.pop()


def _settled(solution: str, choices: Sequence[str]) -> tuple[str | None, str]:
    """The letter that the text settles on; or None, and why."""
    shown = after_thinking(solution)
    for statement in (tagged(shown), last_box(shown)):
        if statement is not None:
            return _letter(statement, choices)
    told = _letter(after_answer_word(shown) or "", choices)
    if told[1] != NOTHING:
        return told
    line = last_line(shown)
    told = _letter(line, choices)
    if told[1] == NOTHING and (found := _last_named(shown, LETTERS[: len(choices)] or LETTERS)):
        line = shown[shown.rfind("\n", 0, found.start()) + 1 :].split("\n", 1)[0]
        told = _letter(line, choices)
    before = last_line(shown[: shown.rfind(line)])
    return (None, SEVERAL) if told[0] and _one_of_a_list(before, line) else told


def _last_named(text: str, letters: str) -> re.Match[str] | None:
    last = None
    for found in _NAMED.finditer(text):
        last = found if _name(found) in letters else last
    return last


def _one_of_a_list(before: str, line: str) -> bool:
    """Whether a line and the one before it are options told one after the other, `C) ...` and `D) ...`."""
    items = [_ITEM.match(text.translate(_MARKUP)) for text in (before, line)]
    letters = {item[1].upper() for item in items if item}
    return len(letters) == 2


def _letter(statement: str, choices: Sequence[str]) -> tuple[str | None, str]:
    """The one letter of a statement, or of the option that it repeats, and ""; or None, and why."""
    if len(statement) > LONGEST:
        return None, NOTHING
    letters = LETTERS[: len(choices)] or LETTERS
    statement = statement.translate(_MARKUP).strip()
    if (alone := _ALONE.fullmatch(statement)) and alone[1].upper() in letters:
        return alone[1].upper(), ""
    if len(told := _options(statement, choices)) == 1:
        return told[0], ""
    item = _ITEM.match(statement)
    if item and (told := _options(statement[item.end() :], choices)):  # the words of an option name no second letter
        return (item[1].upper(), "") if item[1].upper() in told else (None, SEVERAL)
    statement = _REASON.split(statement, maxsplit=1)[0]
    named = [found for found in _NAMED.finditer(statement) if _name(found) in letters]
    if not named:
        return None, NOTHING
    if len({_name(found) for found in named}) > 1:
        return None, SEVERAL
    denied = _DENIED_BEFORE.search(statement, 0, named[-1].start()) or _DENIED_AFTER.match(statement, named[-1].end())
    return (None, DENIED) if denied else (_name(named[-1]), "")


def _name(found: re.Match[str]) -> str:
    return found.group().strip("()[] \t").upper()


def _options(text: str, choices: Sequence[str]) -> list[str]:
    """The letters of the options that a text repeats: word for word where there is one, else in `normalised` form."""
    exact = [letter for letter, choice in zip(LETTERS, choices, strict=False) if choice.strip() == text.strip()]
    if exact or not text.strip():
        return exact
    form = normalised(text, articles=True)
    return [letter for letter, choice in zip(LETTERS, choices, strict=False) if normalised(choice, True) == form]
