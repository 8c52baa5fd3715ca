"""Where a text states its answer: after what was thought, between `<answer>` tags, behind the word "answer", last.

All of it takes time that grows with the text's length.
"""

import re

_SAYS = r"(?:is|was|are|(?:must|should|would|will)[ ]be)\b|[=:：]"
_ANSWER_WORD = re.compile(rf"\banswer\b[ \t*_\"']*(?:(?:{_SAYS})[ \t*_\"']*)+", re.IGNORECASE)


def after_thinking(text: str) -> str:
    """What a reader is shown: the text after the last `</think>`, up to a `<think>` that is never closed. Where no tag
    stands it is all of it: some templates open the thought themselves, and some models do not think."""
    closed = _last(text, "</think>")
    shown = text if closed is None else text[closed.end() :]
    opened = re.search("<think>", shown, re.IGNORECASE)
    return shown if opened is None else shown[: opened.start()]


def tagged(text: str, tag: str = "answer") -> str | None:
    """What the last closed `<tag>...</tag>` holds, stripped; None without one. The inner of two nested ones counts."""
    end = _last(text, f"</{tag}>")
    start = None if end is None else _last(text[: end.start()], f"<{tag}>")
    if end is None or start is None:
        return None
    inner = re.search(f"</{tag}>", text[start.end() :], re.IGNORECASE)
    assert inner is not None
    return text[start.end() : start.end() + inner.start()].strip()


def after_answer_word(text: str) -> str | None:
    """The rest of the line behind the last "answer:" or "answer is", else the next line that is not blank; None without
    one."""
    last = None
    for last in _ANSWER_WORD.finditer(text):  # noqa: B007 (the last match is wanted)
        pass
    if last is None:
        return None
    return next((line.strip() for line in text[last.end() :].splitlines() if line.strip(" \t*_")), "")


def last_line(text: str) -> str:
    """The last line that is not blank, stripped; empty for a blank text."""
    return text.rstrip().rpartition("\n")[2].strip()


def _last(text: str, literal: str) -> re.Match[str] | None:
    last = None
    for last in re.finditer(re.escape(literal), text, re.IGNORECASE):  # noqa: B007
        pass
    return last
