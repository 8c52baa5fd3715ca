r"""Answers in a box: `\boxed{}` and `\fbox{}`, found by matching braces over the whole text, in linear time."""

import re

_OPENING = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s{0,20}")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is a character of the answer
_BARE = re.compile(r"\\[a-zA-Z]+(?:\{[^{}]{0,200}\}|\d){0,2}|[-+\N{MINUS SIGN}]?[\d.,]*\d|[a-zA-Z]")
_JOINT = re.compile(
    r"[\s$\\()\[\]]{0,10}(?:[,;]|[,;]?\s{0,5}(?:\\text\s?\{\s?)?(?:and|or)\b(?:\s?\})?)[\s$\\()\[\]]{0,10}"
)


def last_box(text: str) -> str | None:
    r"""The content of the last box that holds something, stripped; of boxes within boxes, the innermost.

    `\boxed 5` is a box of 5. Boxes between which only a comma, "and" or "or" stands are one answer: "5, 6". None when
    there is no box, or when the last one is never closed: an answer that was cut off is none.
    """
    contents: list[str] = []
    end = following = len(text)  # where the text between boxes ends, and the next box to the right begins
    for opening in reversed(list(_OPENING.finditer(text))):
        box = _content(text, opening.end(), following)
        if box is None:
            break  # cut off, or around the box to its right
        content, closed = box
        if contents and not _JOINT.fullmatch(text, closed, end):
            break
        following = opening.start()
        if content.strip():
            contents.append(content.strip())
            end = following
    return ", ".join(reversed(contents)) or None


def _content(text: str, start: int, stop: int) -> tuple[str, int] | None:
    """What the box that opens at `start` holds, and where it ends; None when it does not end before `stop`."""
    if text[start : start + 1] != "{":
        bare = _BARE.match(text, start, stop)
        return None if bare is None else (bare.group(), bare.end())
    depth = 0
    for brace in _BRACE.finditer(text, start, stop):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[start + 1 : brace.start()], brace.end()
    return None
