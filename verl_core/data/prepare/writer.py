"""Rows to `<split>.parquet`, each file whole or not at all, and `manifest.json` last."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError
from verl_core.data.prepare.prepared import Prepared, Row

FORMAT = 1


def write(name: str, prepared: Prepared, out: Path, written: Callable[[str], None]) -> dict[str, Any]:
    """Writes every split and the manifest, and returns the manifest; `written(split)` is called after each file.

    The same rows give the same bytes; a file that already has them is left alone. Raises UserError when `out` cannot
    be written (no right, no space), in which case earlier files are still whole.
    """
    files = {}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for split, rows in prepared.splits.items():
            files[split] = _write_split(out / f"{split}.parquet", rows)
            written(split)
        manifest = {"format": FORMAT, "dataset": name, "origin": prepared.origin, "files": files}
        with _replacing(out / "manifest.json") as temporary:
            temporary.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    except OSError as e:
        raise UserError(f"{out} cannot be written: {e.strerror or e}", hint="give another folder: --out DIR") from e
    return manifest


def _write_split(path: Path, rows: list[Row]) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows), temporary)
    content = path.read_bytes()
    return {"file": path.name, "rows": len(rows), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@contextmanager
def _replacing(path: Path):
    """A temporary name beside `path`; what was written there becomes `path` when the block ends well, unless `path`
    holds the same bytes already."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if not path.is_file() or path.read_bytes() != temporary.read_bytes():
            with temporary.open("rb") as f:
                os.fsync(f.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
