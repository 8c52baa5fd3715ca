"""Scores the form of an answer, whatever it says: `<think>...</think><answer>...</answer>` and nothing else, as
DeepSeek-R1 (arXiv 2501.12948) rewards it, and a box where one is asked for."""

import re
from typing import Any

from verl_core.rewards.boxed import last_box

_NAME = re.compile(r"[A-Za-z][\w-]*")


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any = None,
    extra_info: dict[str, Any] | None = None,
    tags: list[str] | None = None,
    box: bool = False,
    opened: bool = False,
    shaped: bool = False,
) -> dict[str, Any]:
    """score: 1 when the form is kept, else 0; acc: None, since form is no accuracy; pieces: the share of the form's
    pieces that are kept, which is the score when `shaped`.

    tags: by default think and answer. Each stands exactly once, opened and closed, in this order and not within
    another, with something in it; only blanks stand around them. Without a tag `answer` the answer is what follows the
    last tag, and there must be one.
    box: the answer holds a closed box. opened: the prompt's template has opened the first tag already.
    Pieces are each tag, their order, the text around them, and the box where asked for. Raises ValueError for tags that
    are no names, or nothing asked for.
    """
    tags = ["think", "answer"] if tags is None else tags
    _check(tags, box, opened)
    kept = _pieces(f"<{tags[0]}>{solution_str}" if opened else solution_str, tags, box)
    share = sum(kept.values()) / len(kept)
    broken = next((piece for piece, is_kept in kept.items() if not is_kept), None)
    return {
        "score": share if shaped else float(broken is None),
        "acc": None,
        "pred": None,
        "reason": "right" if broken is None else f"form broken: {broken}",
        "pieces": share,
    }


def _check(tags: list[str], box: bool, opened: bool) -> None:
    if isinstance(tags, str) or not all(isinstance(tag, str) and _NAME.fullmatch(tag) for tag in tags):
        raise ValueError(f"tags is {tags!r}, not a list of names such as [think, answer]")
    if len(set(tags)) < len(tags):
        raise ValueError(f"tags is {tags}, which names a tag twice")
    if not (tags or box):
        raise ValueError("no tags and no box: nothing is asked for")
    if opened and not tags:
        raise ValueError("opened is true, and there are no tags")


def _pieces(text: str, tags: list[str], box: bool) -> dict[str, bool]:
    """Each piece of the form, and whether the text keeps it."""
    marks_and_texts = re.split(f"(</?(?:{'|'.join(map(re.escape, tags))})>)", text) if tags else [text]
    texts, marks = marks_and_texts[::2], marks_and_texts[1::2]
    wanted = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]
    in_order = marks == wanted
    around, after = texts[:-1:2], texts[-1]  # of a text in order; the tags hold texts[1::2]
    kept = {f"<{tag}>": _holds_something(tag, texts, marks) for tag in tags}
    if len(tags) > 1:
        kept["order of tags"] = in_order
    if tags:
        clean = after.strip() == "" if "answer" in tags else after.strip() != ""
        kept["text around tags"] = in_order and clean and not any(gap.strip() for gap in around)
    if box:
        answer = texts[1 + 2 * tags.index("answer")] if in_order and "answer" in tags else after
        kept["box"] = in_order and last_box(answer) is not None
    return kept


def _holds_something(tag: str, texts: list[str], marks: list[str]) -> bool:
    """Whether the tag is opened once and then closed once, with more than blanks in between."""
    if marks.count(f"<{tag}>") != 1 or marks.count(f"</{tag}>") != 1:
        return False
    start, end = marks.index(f"<{tag}>"), marks.index(f"</{tag}>")
    return any(held.strip() for held in texts[start + 1 : end + 1])
