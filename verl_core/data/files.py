"""From what the user wrote under data.train_files to records: paths, folders, globs; Parquet, JSON lines, JSON; .gz."""

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from glob import glob, has_magic
from pathlib import Path
from typing import Any, TextIO

from verl_core.config.errors import UserError

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".json", ".json.gz")
ROWS = 1024  # of a Parquet file in memory at once as columns
SPLIT_PREFIXES = {"train": ("train",), "val": ("test", "val")}


def resolve(files: str | Iterable[str], split: str, key: str | None = None) -> list[Path]:
    """The data files meant by a path, a glob, a folder, or a list of these; `~` is the home folder.

    A folder stands for its data files by name; when some of them are called train*, test* or val*, only those of
    `split` ("train" or "val") are taken. `key` names the files in messages. Raises UserError for a path that names
    nothing or no data file.
    """
    key = key or f"data.{split}_files"
    paths = [
        found for entry in ([files] if isinstance(files, str) else files) for found in _resolve_one(entry, split, key)
    ]
    if not paths:
        raise UserError(f"no {split} files given", hint=f"set {key}=PATH")
    return paths


def read_records(path: Path) -> Iterator[tuple[int, Any]]:
    """(row number from 1, record) of a data file; in JSON lines the row number is the line number.

    A line that is not JSON yields a ValueError in the record's place, so that the reader can report all of them.
    Raises UserError when the file as a whole cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            yield from enumerate(_parquet_rows(path), start=1)
            return
        with _open_text(path) as file:
            if ".jsonl" in path.suffixes:
                yield from _json_lines(file)
                return
            text = file.read()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as e:
        raise UserError(f"{path} cannot be read: {e}", hint="check that the file is whole; UTF-8 is expected") from e
    yield from enumerate(_json_list(path, text), start=1)


def _resolve_one(entry: str, split: str, key: str) -> list[Path]:
    path = Path(entry).expanduser()
    if path.is_dir():
        return _in_folder(path, split)
    if not path.exists() and has_magic(entry):
        found = sorted(p for p in map(Path, glob(str(path), recursive=True)) if p.is_file())  # noqa: PTH207
    else:
        found = [path] if path.is_file() else []
    if not found:
        raise UserError(f"no such {split} file: {entry}", hint=f"make it with `rlx prepare NAME`, or set {key}=PATH")
    for p in found:
        if not p.name.endswith(SUFFIXES):
            known = f"known endings are {', '.join(SUFFIXES)}; `rlx prepare custom` makes one of a CSV file"
            raise UserError(f"{p} is not a data file", known)
    return found


def _in_folder(folder: Path, split: str) -> list[Path]:
    found = sorted(p for p in folder.iterdir() if p.name.endswith(SUFFIXES))
    named = [p for p in found if p.name.startswith(sum(SPLIT_PREFIXES.values(), ()))]
    fitting = [p for p in named if p.name.startswith(SPLIT_PREFIXES[split])] if named else found
    if not fitting:
        others = f"name a file to take it all the same: {', '.join(map(str, named[:3]))}"
        raise UserError(
            f"no {split} file in folder {folder}", others if named else f"known endings are {', '.join(SUFFIXES)}"
        )
    return fitting


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """A batch at a time, as a file's columns and its rows together need several times the memory of the rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if len(set(columns)) < len(columns):
                raise UserError(f"{path} names a column twice: {', '.join(columns)}", "give each a name of its own")
            for batch in file.iter_batches(ROWS):
                yield from batch.to_pylist()
    except pa.ArrowException as e:
        raise UserError(f"{path} is not a whole Parquet file: {e}", hint="make it again with `rlx prepare NAME`") from e


def _open_text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _json_lines(file: TextIO) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            try:
                yield number, _json(line)
            except ValueError as e:
                yield number, e


def _json_list(path: Path, text: str) -> list[Any]:
    lines = "JSON lines need the ending .jsonl"
    try:
        records = _json(text)
    except ValueError as e:
        raise UserError(f"{path}: {e}", hint=lines) from e
    if not isinstance(records, list):
        raise UserError(f"{path} holds a {type(records).__name__}, not a list of rows", hint=lines)
    return records


def _json(text: str) -> Any:
    """Raises ValueError, which says what is wrong, also for what JSON has and Python or a tokenizer does not take."""
    try:
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # two such escapes are one character, one alone is none
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as e:
        place = f"line {e.lineno}" if "\n" in text.rstrip() else f"column {e.colno}"
        raise ValueError(f"not JSON: {e.msg} at {place}") from e
    except UnicodeEncodeError as e:
        raise ValueError(f"half a surrogate pair, \\u{ord(e.object[e.start]):04x}, which is no character") from e
    except RecursionError as e:
        raise ValueError("nested too deeply to be read") from e
    except ValueError as e:  # the interpreter's bound on digits
        raise ValueError("a number of thousands of digits") from e
    return value
