"""What a data set's `prepare` is asked for, and what it hands back."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def _silent(done: int, total: int | None) -> None:
    """Progress that nobody looks at."""


@dataclass(frozen=True)
class Wanted:
    """The words of `rlx prepare NAME[:TASK]` that concern what is made."""

    name: str
    """As it was asked for: `gsm8k`, `reasoning-gym:TASK`."""
    source: Path | None = None
    """Folder or file with the data set's own rows; None: the hub, or made here."""
    limit: int | None = None
    """At most this many rows of each split."""
    options: Any = None
    """The data set's own options: the dataclass that its entry in the catalogue names, or None."""
    progress: Callable[[int, int | None], None] = _silent
    """Called now and then with rows done and rows in all, where that is known."""

    @property
    def task(self) -> str:
        """What stands behind the colon of the name; empty without one."""
        return self.name.partition(":")[2]


@dataclass(frozen=True)
class SourceFile:
    """A file that rows were read from: its name below the source, bytes and SHA-256 (hex)."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Prepared:
    """Rows with veRL's columns by split ("train", "test"; a split that the data set lacks is absent), and where they
    came from. `needs`: extras that the environment of a run must have to score the rows. `notes`: what a user should
    know of what was done, a line each."""

    splits: dict[str, list[Row]]
    origin: str
    sources: tuple[SourceFile, ...] = ()
    needs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
