"""From files to checked rows, in the form that an algorithm reads."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from verl_core.config.schema import DataConfig
from verl_core.data.builtin import builtin_pairs, builtin_rows, is_builtin
from verl_core.data.example_rows import comparison, demonstration, pair
from verl_core.data.files import read_records, resolve
from verl_core.data.rows import BrokenRow, RawRow, as_object, number_at, parse_row, refuse_media
from verl_core.data.sources import Source

Form = Literal["prompts", "demonstrations", "pairs", "labels"]
Split = Literal["train", "val"]


def _prompt(record: dict[str, Any], file: str, row: int, cfg: DataConfig) -> RawRow:
    return parse_row(record, file, row, cfg.prompt_key, cfg.reward_fn_key)


PARSERS: dict[Form, Callable[[dict[str, Any], str, int, DataConfig], RawRow]] = {
    "prompts": _prompt,
    "demonstrations": demonstration,
    "pairs": pair,
    "labels": comparison,
}
COLUMNS: dict[Form, str] = {
    "prompts": "data_source, prompt, reward_model.ground_truth",
    "demonstrations": "messages, or prompt and extra_info.answer",
    "pairs": "prompt, chosen and rejected",
    "labels": "prompt, completion and label, or prompt, chosen and rejected",
}


@dataclass
class Rows:
    """What was read, in the order of the sources and their files."""

    rows: list[RawRow] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    """The index at which each source's rows begin."""
    difficulty: array[float] = field(default_factory=lambda: array("d"))
    """What data.curriculum.by names, of each row of a training split; empty without it."""
    broken: list[tuple[str, int, str]] = field(default_factory=list)
    """(file, row, what is wrong) of the rows that are left out."""


def read_rows(sources: Sequence[Source], form: Form, cfg: DataConfig, split: Split, seed: int) -> Rows:
    """The rows of all sources. Raises UserError for files that are not there or cannot be read."""
    read, graded = Rows(), cfg.curriculum.by if split == "train" else None
    for source in sources:
        read.begins.append(len(read.rows))
        for file, number, record in records(source, form, split, seed):
            refuse_media(record, file, number)
            try:
                row = PARSERS[form](as_object(record), file, number, cfg)
                if graded is not None:
                    read.difficulty.append(number_at(record, graded))
                read.rows.append(row)
            except BrokenRow as e:
                read.broken.append((file, number, str(e)))
    return read


def records(source: Source, form: Form, split: Split, seed: int) -> Iterator[tuple[str, int, Any]]:
    """(file, row from 1, record) of a source."""
    for entry in source.files:
        if is_builtin(entry):
            rows_of = builtin_pairs if form in ("pairs", "labels") else builtin_rows
            for number, record in enumerate(rows_of(entry, "train" if split == "train" else "test", seed), start=1):
                yield entry, number, record
        else:
            for path in resolve(entry, split, source.key):
                for number, record in read_records(path):
                    yield str(path), number, record
