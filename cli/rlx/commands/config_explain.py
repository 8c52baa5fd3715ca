"""`rlx config explain`: everything there is to say about a key."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from rlx import ui
from rlx.arguments import FILE_OPTION, JSON_OPTION, resolve_words
from rlx.commands.config_schema import WIDTH
from verl_core.config.compose import PROJECT_FILE
from verl_core.config.explain import Explanation, Here, explain, here
from verl_core.config.typed import MISSING, show

INDENT = " " * 11
WORDS = typer.Argument(None, metavar="PROFILE | KEY=VALUE", help="A configuration in which to look the key up.")


def register(app: typer.Typer) -> None:
    app.command("explain")(explain_key)


def explain_key(
    key: str = typer.Argument(..., metavar="KEY", help="A key or section of rlx, or a key of veRL."),
    words: list[str] = WORDS,
    file: Path = FILE_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Explain a key, and its value here.

    Meaning, type, choices, default, veRL's name, and what gives it effect. With a profile or settings (or
    ./rlx.yaml here), also its value there, and every layer that set it in order.
    """
    explanation = explain(key)
    named = bool(words or file or Path(PROJECT_FILE).is_file())
    found = None
    if named and not explanation.field.section:
        found = here(explanation.key, resolve_words(words or [], file))
    if as_json:
        ui.out_json(_plain(explanation, found))
        return
    ui.out("\n".join([*_about(explanation), *(_found(found) if found else ())]))


def _about(it: Explanation) -> Iterator[str]:
    yield it.key
    yield from _wrapped(it.field.meaning, " " * 2)
    for field in it.inside:
        if not field.section:
            yield from _wrapped(f"{field.key}: {show(field.default)}  {field.meaning}", " " * 2, " " * 6)
    if it.field.section:
        return
    yield from _row("type", it.field.words)
    yield from _row("default", show(it.field.default))
    for entry in it.entries:
        later = "" if entry.built else " Comes with a later release."
        yield from _row("choice", f"{entry.name}: {entry.doc}{later}")
    yield from _row("veRL", ", ".join(it.verl) or "has no such key")
    for switch in it.switches:
        yield from _row("effect", f"only with {switch}")
    if it.today:
        yield from _row("today", f"only {it.today} runs; the rest plans and dry-runs, and comes with a later release")


def _found(it: Here) -> Iterator[str]:
    yield from _row("here", "absent" if it.value is MISSING else show(it.value))
    for i, step in enumerate(it.steps):
        wins = "  <- holds" if i == len(it.steps) - 1 else ""
        item = f"{step.item}=" if step.item else ""
        yield f"{INDENT}{step.origin}: {item}{show(step.value)}{wins}"
    for switch in it.idle:
        yield from _row("", f"no effect here; for that set {switch}")


def _row(name: str, text: str) -> list[str]:
    return _wrapped(text, f"  {name}".ljust(len(INDENT)), INDENT)


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    rest = first if rest is None else rest
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _plain(it: Explanation, found: Here | None) -> dict[str, Any]:
    field = it.field
    about: dict[str, Any] = {"key": it.key, "section": field.section, "meaning": field.meaning}
    if field.section:
        return about | {"keys": {each.key: each.meaning for each in it.inside if not each.section}}
    about |= {
        "type": field.words,
        "default": field.default,
        "choices": list(field.choices) or None,
        "range": field.range,
        "verl": list(it.verl),
        "effect_with": list(it.switches),
        "runs_today": it.today,
    }
    if found:
        about["here"] = {
            "value": None if found.value is MISSING else found.value,
            "steps": [{"origin": step.origin, "key": step.item or it.key, "value": step.value} for step in found.steps],
            "effect": not found.idle,
        }
    return about
