"""`rlx profile ls`."""

import textwrap
from typing import Any

import typer

from rlx import ui
from rlx.arguments import JSON_OPTION
from rlx.commands.config_schema import WIDTH
from verl_core.config.compose import profile_names, resolve
from verl_core.config.effective import effective, uses_rollout
from verl_core.config.unbuilt import unbuilt


def register(app: typer.Typer) -> None:
    app.command()(ls)


def ls(
    long: bool = typer.Option(False, "--long", "-l", help="Everything about each, one line for each thing."),
    as_json: bool = JSON_OPTION,
) -> None:
    """List the profiles that come with rlx.

    With algorithm, engine, model, hardware, purpose, memory and time. A star stands behind a profile of which this
    release does not run every part; --long says which.
    """
    rows = [_row(name) for name in profile_names()]
    if as_json:
        ui.out_json(rows)
    elif long:
        for row in rows:
            later = [("later", text) for text in row["later"]]
            ui.pairs([(name, value) for name, value in row.items() if isinstance(value, str) and value] + later)
            ui.out("")
    else:
        _table(rows)


def _row(name: str) -> dict[str, Any]:
    c = effective(resolve(name).config)
    return {
        "profile": name,
        "algorithm": c.algorithm.name,
        "engine": c.rollout.engine if uses_rollout(c) else "",
        "model": c.model.path,
        "hardware": c.hardware,
        "memory": c.memory,
        "time": c.time,
        "purpose": c.purpose,
        "later": list(unbuilt(c)),
    }


def _table(rows: list[dict[str, Any]]) -> None:
    """A line of columns for each profile, and below it what is text."""
    columns = ("profile", "algorithm", "engine", "model", "hardware")
    cells = [[row[name] + "*" * (name == "profile" and bool(row["later"])) for name in columns] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]

    def line(values: list[str]) -> str:
        return "  ".join(value.ljust(width) for value, width in zip(values, widths, strict=True)).rstrip()

    ui.out(line([name.upper() for name in columns]))
    ui.out("    PURPOSE; MEMORY; TIME        (*: not every part of it runs in this release)")
    for row, values in zip(rows, cells, strict=True):
        ui.out(line(values))
        text = "; ".join(row[name] for name in ("purpose", "memory", "time") if row[name])
        ui.out(textwrap.fill(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4, break_on_hyphens=False))
