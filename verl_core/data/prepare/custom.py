"""A user's own file as a data set: its columns are mapped to the fields of a row."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from verl_core.config.custom_data import CustomOptions
from verl_core.config.errors import UserError
from verl_core.data.files import SUFFIXES, read_records
from verl_core.data.prepare.comma_separated import ENDINGS, read_csv
from verl_core.data.prepare.custom_rows import row_of
from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import TOLD_EVERY
from verl_core.data.prepare.source import hashed
from verl_core.data.rows import BrokenRow, as_object, raise_for


def prepare(wanted: Wanted) -> Prepared:
    """Rows of `--source` for training, and of `--test-source` or a share of the rows as the test split.

    Raises UserError for an absent or unknown file, and for broken rows with file, line and the fields present.
    """
    options: CustomOptions = wanted.options
    if wanted.source is None:
        raise UserError("custom data needs its file", "rlx prepare custom --source FILE --map prompt=COLUMN,...")
    sources = {"train": wanted.source}
    if options.test_source:
        sources["test"] = Path(options.test_source).expanduser()
    broken: list[tuple[str, int, str]] = []
    splits = {split: list(_rows(path, wanted, broken)) for split, path in sources.items()}
    raise_for(broken, "broken rows", hint="correct them, or the columns that --map names")
    for split, rows in splits.items():
        if not rows:
            raise UserError(f"{sources[split]} has no rows", "a row a line, below a header where it is CSV")
    if options.split:
        splits = _parted(splits["train"], options)
    numbered = {split: [_numbered(row, split, i) for i, row in enumerate(rows)] for split, rows in splits.items()}
    cut = {split: rows[: wanted.limit] for split, rows in numbered.items()}
    files = tuple(hashed(path, path.name) for path in sources.values())
    return Prepared(cut, ", ".join(map(str, sources.values())), files)


def _rows(path: Path, wanted: Wanted, broken: list[tuple[str, int, str]]) -> Iterator[Row]:
    for done, (number, record) in enumerate(_records(path), start=1):
        try:
            yield row_of(as_object(record), wanted.options)
        except BrokenRow as e:
            broken.append((str(path), number, str(e)))
        if done % TOLD_EVERY == 0:
            wanted.progress(done, None)


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    known = (*SUFFIXES, *ENDINGS)
    if not path.is_file():
        raise UserError(f"{path} is no file", f"one file for training; known endings are {', '.join(known)}")
    if not path.name.endswith(known):
        raise UserError(f"{path} is not a data file", f"known endings are {', '.join(known)}")
    return read_csv(path) if path.name.endswith(ENDINGS) else read_records(path)


def _parted(rows: list[Row], options: CustomOptions) -> dict[str, list[Row]]:
    """Rows of equal prompts go to the same split, so that none of the test split is known from training."""
    prompts = list(dict.fromkeys(map(_prompt, rows)))
    held_out = round(len(prompts) * options.split)
    if not 0 < held_out < len(prompts):
        raise UserError(
            f"--split {options.split:g} of {len(prompts)} different prompts leaves a split without rows",
            "another share, or --test-source FILE",
        )
    chosen = set(Random(f"{options.seed} split").sample(prompts, held_out))
    return {
        "train": [row for row in rows if _prompt(row) not in chosen],
        "test": [row for row in rows if _prompt(row) in chosen],
    }


def _prompt(row: Row) -> str:
    asked = row.get("prompt") or [m for m in row.get("messages", []) if m["role"] != "assistant"] or row.get("chosen")
    return repr(asked)


def _numbered(row: Row, split: str, index: int) -> Row:
    return row | {"extra_info": {"split": split, "index": index, **row["extra_info"]}}
