"""`rlx config show`: every key with its value, and where each came from."""

from pathlib import Path

import typer

from rlx import ui
from rlx.arguments import FILE_OPTION, JSON_OPTION, WORDS_HELP, resolve_words
from rlx.config_sources import values
from verl_core.config import write
from verl_core.config.effective import effective
from verl_core.config.typed import plain


def register(app: typer.Typer) -> None:
    app.command()(show)


def show(
    words: list[str] = typer.Argument(None, metavar="PROFILE | KEY=VALUE", help=WORDS_HELP),
    file: Path = FILE_OPTION,
    origin: bool = typer.Option(False, "--origin", help="Say behind each value where it came from."),
    fill: bool = typer.Option(False, "--effective", help="Fill in what is derived, and say by which rule."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Print every key with its value.

    `rlx train -f FILE` takes the YAML that this prints. Without a profile, ./rlx.yaml is shown. With --origin,
    --json prints {KEY: {"value": ..., "origin": ...}} by dotted keys; a derived value has the rule as its origin.
    """
    resolved = resolve_words(words or [], file)
    config = effective(resolved.config) if fill else resolved.config
    if as_json and not origin:
        ui.out_json(plain(config))
        return
    found = values(resolved, fill)
    if as_json:
        ui.out_json({key: {"value": value, "origin": source} for key, (value, source) in found.items()})
    else:
        shown = {key: source for key, (_, source) in found.items() if origin or source.startswith("derived: ")}
        ui.out(write.dump(config, shown).rstrip("\n"))
