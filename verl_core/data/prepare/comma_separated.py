"""CSV and TSV with a header line, plain or .gz, as records."""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
LONGEST = 1 << 27  # characters of a field; the csv module's own bound is 131,072


def read_csv(path: Path) -> Iterator[tuple[int, Any]]:
    """(line on which the row ends, texts by column, None for an empty one); a ValueError in place of a row that has
    other than the header's number of fields. Raises UserError when the file cannot be read, or its header names a
    column twice."""
    csv.field_size_limit(LONGEST)
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = csv.reader(
            io.StringIO(raw.decode("utf-8-sig"), newline=""),
            delimiter="\t" if ".tsv" in path.suffixes else ",",
            strict=True,
        )
        header = next(lines, [])
        if len(set(header)) < len(header):
            raise UserError(f"{path} names a column twice: {', '.join(header)}", "give each column a name of its own")
        for fields in lines:
            if not fields:
                continue
            record: Any = {name: text or None for name, text in zip(header, fields, strict=False)}
            if len(fields) != len(header):
                how_many = f"{len(fields)} fields, the header {len(header)}"
                record = ValueError(f"the row has {how_many}: {', '.join(header)}")
            yield lines.line_num, record
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as e:
        raise UserError(f"{path} cannot be read: {e}", "check that it is whole, in UTF-8, its quotes closed") from e
