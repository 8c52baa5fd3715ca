"""What a data set's `prepare` hands back."""

from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """Rows with veRL's columns by split ("train", "test"), and where they came from."""

    splits: dict[str, list[Row]]
    origin: str
