"""From the files of a published data set to rows with veRL's columns: what its `prepare` shares with all others."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from verl_core.config.errors import UserError
from verl_core.data.example_rows import CHOSEN, REJECTED, ExampleRow
from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.source import Layout, Source, find
from verl_core.data.rows import BrokenRow, absent, as_object, broken, raise_for, short

Record = dict[str, Any]
RowOf = Callable[[Record, str, int], Row | None]
"""(record, our split, index of the row to be) -> row, or None for a record of another split. Raises BrokenRow."""

TOLD_EVERY = 1000  # rows between two reports of progress
FEW = 100  # rows of which one may be broken where that is allowed


def published(
    wanted: Wanted,
    layout: Layout,
    row_of: RowOf,
    same: Callable[[Row], Hashable] | None = None,
    lenient: bool = False,
) -> Prepared:
    """The rows of every split, at most `wanted.limit` each. `same`: rows with an equal value of it are kept once.
    `lenient`: broken rows are left out and counted while they are fewer than one in a hundred, for large sets
    that nobody has cleaned.

    Raises UserError for absent files, an unreachable hub, files without rows, and broken rows with their file and line.
    """
    source = find(wanted, layout)
    reader = _Reader(wanted, row_of, same)
    splits = {split: reader.rows(source, split) for split in layout.splits}
    few = lenient and len(reader.broken) * FEW < reader.read
    if not few:
        raise_for(reader.broken, "broken rows", hint=f"a row of {wanted.name} is {{{layout.columns}}}")
    if not any(splits.values()):
        raise UserError(f"{source.origin} has no rows of {wanted.name}", hint=f"a row is {{{layout.columns}}}")
    notes = [f"{reader.repeated:,} rows that repeat an earlier one were left out"] if reader.repeated else []
    if reader.broken:
        file, number, why = reader.broken[0]
        notes.append(f"{len(reader.broken):,} broken rows were left out, the first in {file} row {number}: {why}")
    notes += [f"the source has no rows of the split {split}" for split, rows in splits.items() if not rows]
    made = {split: rows for split, rows in splits.items() if rows}
    return Prepared(made, source.origin, source.hashed(), notes=tuple(notes))


def prompt_row(
    data_source: str,
    content: str,
    ability: str,
    ground_truth: Any,
    split: str,
    index: int,
    **extra_info: Any,
) -> Row:
    """A row that is answered and scored: veRL's columns. An `answer` in `extra_info` is a worked answer that the row's
    rule gives full marks; `rlx prepare --validate` holds it to that."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": content}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {"split": split, "index": index, **extra_info},
    }


def pair_row(data_source: str, example: ExampleRow, split: str, index: int, **extra_info: Any) -> Row:
    """A row of two answers, of which `chosen` is the better one: all three parts are messages."""
    return {
        "data_source": data_source,
        "prompt": example.messages,
        "chosen": example.answers[CHOSEN].turns,
        "rejected": example.answers[REJECTED].turns,
        "extra_info": {"split": split, "index": index, **extra_info},
    }


def text(record: Record, field: str) -> str:
    """A field that is a text. Raises BrokenRow."""
    if not isinstance(value := record.get(field), str):
        broken(record, field, absent(record, field) if value is None else f"is {short(value)}, not a text")
    return value


class _Reader:
    """Rows of one split after the other, with what was wrong in any of them."""

    def __init__(self, wanted: Wanted, row_of: RowOf, same: Callable[[Row], Hashable] | None):
        self.wanted, self.row_of, self.same = wanted, row_of, same
        self.broken: list[tuple[str, int, str]] = []
        self.repeated = self.read = 0

    def rows(self, source: Source, split: str) -> list[Row]:
        found: list[Row] = []
        seen: set[Hashable] = set()
        for file, number, record in source.records(split):
            if len(found) == self.wanted.limit:
                break
            self.read += 1
            if self.read % TOLD_EVERY == 0:
                self.wanted.progress(self.read, None)
            try:
                row = self.row_of(as_object(record), split, len(found))
            except BrokenRow as e:
                self.broken.append((file, number, str(e)))
                continue
            if row is None:
                continue
            if self.same:
                if (key := self.same(row)) in seen:
                    self.repeated += 1
                    continue
                seen.add(key)
            found.append(row)
        return found
