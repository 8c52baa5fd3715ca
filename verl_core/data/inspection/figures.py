"""Counts and lengths of a data set's rows."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Any

from verl_core.data.example_rows import ExampleRow
from verl_core.data.inspection.subject import Lengths, Subject
from verl_core.data.rows import RawRow

BINS = 10


def figures(subject: Subject, limit: int, against: Subject | None) -> dict[str, Any]:
    """JSON: how many rows of which data sources, how long their prompts and answers are, how many are longer than
    `limit` tokens, come twice, or are among the rows of `against`.

    Lengths are in tokens of the real template where the tokenizer is known, else in characters of what the messages
    say, of which nobody can tell how many are too long.
    """
    found: dict[str, Any] = {
        "form": subject.form,
        "rows": len(subject.rows),
        "broken": len(subject.read.broken),
        "data_sources": dict(Counter(row.data_source for row in subject.rows).most_common()),
        "duplicates": sum(1 for _ in repeated(subject.rows)),
    }
    if subject.tokenizer is None:
        lengths, found["unit"] = {i: characters(row) for i, row in enumerate(subject.rows)}, "characters"
    else:
        (lengths, refused), found["unit"] = subject.lengths(), "tokens"
        found["refused_by_template"] = len(refused)
        found["max_prompt_length"] = limit
        found["overlong"] = sum(prompt > limit for prompt, _ in lengths.values())
        found["overlong_share"] = found["overlong"] / max(len(lengths), 1)
    found |= _of_lengths(lengths)
    if against is not None:
        shared = among(subject.rows, against.rows)
        found["against"] = {
            "rows": len(against.rows),
            "shared": len(shared),
            "shared_share": len(shared) / max(len(subject.rows), 1),
        }
    return found


def repeated(rows: Iterable[RawRow]) -> Iterator[tuple[RawRow, RawRow]]:
    """(a row, the first one with the same prompt and the same answers to learn from)."""
    first: dict[bytes, RawRow] = {}
    for row in rows:
        answers = row.answers if isinstance(row, ExampleRow) else ()
        said = [message["content"] for answer in answers for message in answer.turns]
        asked = [message["content"] for message in row.messages]
        earlier = first.setdefault(_key([*asked, *said]), row)
        if earlier is not row:
            yield row, earlier


def among(rows: Iterable[RawRow], others: Iterable[RawRow]) -> list[tuple[RawRow, RawRow]]:
    """(a row, the first of the others that asks the same) for the rows that others have, too."""
    known: dict[bytes, RawRow] = {}
    for other in others:
        known.setdefault(_key([prompt_text(other)]), other)
    return [(row, known[key]) for row in rows if (key := _key([prompt_text(row)])) in known]


def prompt_text(row: RawRow) -> str:
    """What a prompt says: the content of its messages but the system's, which rows share."""
    return "\n".join(str(message["content"]) for message in row.messages if message["role"] != "system")


def characters(row: RawRow) -> tuple[int, int]:
    """Of the prompt's messages, and of the longest answer's."""
    answers = row.answers if isinstance(row, ExampleRow) else ()
    return sum(len(m["content"]) for m in row.messages), max(
        (sum(len(m["content"]) for m in answer.turns) for answer in answers), default=0
    )


def summary(lengths: Sequence[int]) -> dict[str, Any]:
    """Least, median, 95th percentile (nearest rank), most, and a histogram: [from, up to and with, rows] a bin."""
    ordered = sorted(lengths)
    low, high = ordered[0], ordered[-1]
    width = max(1, ceil((high - low + 1) / BINS))
    counts = Counter((length - low) // width for length in ordered)
    return {
        "min": low,
        "median": ordered[(len(ordered) - 1) // 2],
        "p95": ordered[ceil(0.95 * len(ordered)) - 1],
        "max": high,
        "histogram": [
            [low + b * width, low + (b + 1) * width - 1, counts[b]] for b in range((high - low) // width + 1)
        ],
    }


def _of_lengths(lengths: Lengths) -> dict[str, Any]:
    prompts, answers = [prompt for prompt, _ in lengths.values()], [answer for _, answer in lengths.values() if answer]
    named = (("prompt_length", prompts), ("answer_length", answers))
    return {name: summary(values) for name, values in named if values}


def _key(texts: Sequence[str]) -> bytes:
    """Equal for texts that differ in case, white space or the form of their characters only."""
    plain = "\0".join(" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts)
    return hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()
