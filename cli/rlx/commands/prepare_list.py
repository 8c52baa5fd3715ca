"""`rlx prepare --list`: the data sets, from the catalogue alone."""

import textwrap
from typing import Any

from rlx import ui
from rlx.commands.config_schema import WIDTH
from verl_core.config import catalogue, dataset_options


def show(as_json: bool) -> None:
    """Prints name, rows, licence and scorer of every data set, and below it what it is and which options it has."""
    rows = [_row(name) for name in catalogue.names("dataset")]
    if as_json:
        ui.out_json(rows)
        return
    columns = ("name", "rows", "licence", "scorer")
    cells = [(row["name"], _counts(row["rows"]), row["licence"], row["scorer"] or "none") for row in rows]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    ui.out(_line([name.upper() for name in columns], widths))
    for row, values in zip(rows, cells, strict=True):
        ui.out(_line(values, widths))
        options = "; ".join(f"{flag} {what}" for flag, what in row["options"].items())
        text = row["doc"] + (f" Options: {options}." if options else "")
        ui.out(textwrap.fill(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4, break_on_hyphens=False))


def _row(name: str) -> dict[str, Any]:
    entry = catalogue.entry("dataset", name)
    facts = dataset_options.facts(entry)
    return {
        "name": f"{name}:TASK" if facts.tasks else name,
        "rows": dict(facts.rows),
        "licence": facts.licence,
        "scorer": facts.scorer,
        "hub": facts.hub,
        "options": dataset_options.described(facts.options) if facts.options else {},
        "doc": entry.doc,
    }


def _counts(rows: dict[str, int]) -> str:
    return ", ".join(f"{split} {n:,}" for split, n in rows.items()) or "its own"


def _line(values: Any, widths: list[int]) -> str:
    return "  ".join(value.ljust(width) for value, width in zip(values, widths, strict=True)).rstrip()
