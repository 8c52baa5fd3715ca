"""`rlx config diff`: the keys in which two configurations differ."""

from typing import Any

import typer

from rlx import ui
from rlx.arguments import JSON_OPTION, say
from rlx.config_sources import Source, split_sources, values
from verl_core.config.schema import FACTS
from verl_core.config.typed import MISSING, show

WORDS = typer.Argument(
    ...,
    metavar="A [KEY=VALUE...] B [KEY=VALUE...]",
    help="Each a profile, a file, a run directory or a project folder, with settings after it.",
)


def register(app: typer.Typer) -> None:
    app.command()(diff)


def diff(
    words: list[str] = WORDS,
    fill: bool = typer.Option(False, "--effective", help="Compare derived values as well."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Print where two configurations differ.

    The keys, with both values and where they came from; what profiles say of themselves is left out. Exit code 0,
    whether they differ or not. The same profile may be named twice: `rlx config diff smoke smoke rollout.n=4`.
    """
    sources, before = split_sources(words)
    if before or len(sources) != 2:
        raise typer.BadParameter("name two configurations; settings stand after the one they belong to")
    report(sources, fill, as_json)


def report(sources: list[Source], fill: bool, as_json: bool) -> None:
    """Prints the differences of two configurations."""
    sides = []
    for source in sources:
        resolved = source.resolve()
        say(resolved)
        sides.append({key: value for key, value in values(resolved, fill).items() if key not in FACTS})
    a, b = sides
    differing = [key for key in {**a, **b} if a.get(key, (MISSING,))[0] != b.get(key, (MISSING,))[0]]
    if as_json:
        ui.out_json({key: {"a": _json(a.get(key)), "b": _json(b.get(key))} for key in differing})
        return
    if not differing:
        ui.talk(f"{sources[0].label} and {sources[1].label} have the same values")
    for key in differing:
        ui.out(key)
        for mark, side in (("-", a), ("+", b)):
            ui.out(f"  {mark} {_text(side.get(key))}")


def _json(given: tuple[Any, str] | None) -> dict[str, Any] | None:
    return None if given is None else {"value": given[0], "origin": given[1]}


def _text(given: tuple[Any, str] | None) -> str:
    return "absent" if given is None else f"{show(given[0])}  ({given[1]})"
