"""The one place that prints. Data goes to stdout, talk to stderr; NO_COLOR and pipes are respected (rich does that).
Errors are printed by `verl_core.config.process`, which jobs share.

rich is imported when something is printed, so that `rlx --help` does not pay for it.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


@cache
def _console(stderr: bool) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True)


def out(text: str) -> None:
    """Print data on stdout, as it is."""
    print(text)


def out_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=2))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows on stdout in aligned columns; a terminal gets a bold header."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(str(cell).ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    if sys.stdout is not None and sys.stdout.isatty():
        _console(False).print(line(header), style="bold")
    else:  # not through rich, which ends the process by itself when a pipe's reader leaves
        out(line(header))
    for row in rows:
        out(line(row))


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Print name and value lines on stdout, names in one column."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        out(f"{name.ljust(width)}  {value}")


def talk(text: str) -> None:
    """Say something on stderr."""
    _console(True).print(text, style="dim")


def note(text: str) -> None:
    """Say something on stderr that the user may want to act on later."""
    _say("note:", "cyan", text)


def warn(text: str) -> None:
    """Say on stderr that something will not do what it seems to do."""
    _say("warning:", "yellow", text)


def error(text: str) -> None:
    """Say on stderr what is wrong; the command goes on to what else there is, and then ends with an exit code."""
    _say("error:", "red", text)


def _say(label: str, style: str, text: str) -> None:
    from rich.text import Text

    _console(True).print(Text.assemble((label, style), " ", text))


def interactive() -> bool:
    """True when stderr is a terminal that can redraw a line."""
    return sys.stderr.isatty() and _console(True).is_terminal


class Progress:
    """A bar of `total` units on stderr; see `progress`."""

    def __init__(self, bar: Any, task: Any):
        self._bar, self._task = bar, task

    def advance(self, units: float, doing: str | None = None) -> None:
        """Move on by `units`; `doing` replaces the text before the bar."""
        if doing:
            self._bar.update(self._task, description=doing)
        self._bar.advance(self._task, units)


@contextmanager
def download_progress(doing: str, total_bytes: int) -> Iterator[Progress]:
    """A progress bar in bytes; nothing where stderr is not a terminal."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Bar(*columns, console=_console(True), transient=True, disable=not interactive()) as bar:
        yield Progress(bar, bar.add_task(doing, total=total_bytes))


def size(n_bytes: float) -> str:
    """Bytes as people read them: 812 MB, 5.4 GB (powers of ten)."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"
