"""`rlx config schema`: every key that there is."""

import textwrap

import typer

from rlx import ui
from verl_core.config.describe import Field, fields
from verl_core.config.explain import explain
from verl_core.config.json_schema import json_schema
from verl_core.config.typed import show

WIDTH = 120


def register(app: typer.Typer) -> None:
    app.command()(schema)


def schema(
    prefix: str = typer.Argument(None, metavar="PREFIX", help="Only this key, or the keys of this section."),
    as_json: bool = typer.Option(False, "--json", help="Print the JSON Schema of rlx.yaml, for editors."),
) -> None:
    """List all keys that there are.

    With default, type, choices, range and meaning.
    """
    if as_json:
        ui.out_json(json_schema())
        return
    chosen = explain(prefix) if prefix else None
    shown = [chosen.field, *chosen.inside] if chosen else list(fields().values())
    ui.out("\n".join(line for field in shown for line in lines(field)))


def lines(field: Field) -> list[str]:
    """A key in two lines or more; a section in one."""
    if field.section:
        return [f"{field.key}.  {field.meaning}"]
    head = f"  {field.key}: {show(field.default)}  ({field.words})"
    return [
        *textwrap.wrap(head, WIDTH, subsequent_indent=" " * 6, break_on_hyphens=False),
        *textwrap.wrap(field.meaning, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False),
    ]
