"""Reading and writing the run directory's JSON without ever leaving half a file."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError


def write_atomic(path: Path, text: str) -> None:
    """Replaces `path` by `text` as a whole: after a crash the old or the new content stands there, never a mixture."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Replaces `path` by `value` as indented JSON, atomically."""
    write_atomic(path, json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; {} where there is no such file. Raises UserError when it is not a JSON object."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise UserError(f"{path} is not JSON: {e}", "move the file away; it is written anew") from e
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}, not a JSON object", "move the file away")
    return value


def plain(value: Any) -> Any:
    """`value` as what JSON knows. NumPy and torch scalars and arrays become numbers and lists, non-finite numbers null,
    anything else its text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    return str(value)


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, one by one; nothing when there is no file.

    A last line without its newline is what a killed writer leaves, and is passed over. Raises UserError naming file and
    line for any other broken line.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as f:
        for number, line in enumerate(f, 1):
            if not line.endswith("\n"):
                return
            try:
                value = json.loads(line)
            except ValueError as e:
                raise UserError(f"{path}, line {number}: not JSON: {line.strip()[:80]!r}", "remove the line") from e
            if not isinstance(value, dict):
                raise UserError(f"{path}, line {number}: not a JSON object: {line.strip()[:80]!r}", "remove the line")
            yield value
