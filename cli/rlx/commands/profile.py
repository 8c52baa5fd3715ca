"""`rlx profile`: the profiles that come with rlx."""

import dataclasses

import typer

from rlx import ui
from rlx.arguments import JSON_OPTION, WORDS_HELP, resolve_words
from verl_core.config import write
from verl_core.config.compose import profile_names, resolve

app = typer.Typer(
    help="List the profiles that come with rlx, and show what one sets.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)


@app.command()
def ls(as_json: bool = JSON_OPTION) -> None:
    """List the profiles with purpose, algorithm, engine and model."""
    rows = []
    for name in profile_names():
        config = resolve(name).config
        rows.append(
            {
                "profile": name,
                "algorithm": config.algorithm.name,
                "engine": config.rollout.engine,
                "model": config.model.path,
                "purpose": config.purpose,
            }
        )
    if as_json:
        ui.out_json(rows)
    else:
        ui.table([name.upper() for name in rows[0]], [list(row.values()) for row in rows])


@app.command()
def show(
    words: list[str] = typer.Argument(None, metavar="PROFILE | KEY=VALUE", help=WORDS_HELP),
    as_json: bool = JSON_OPTION,
) -> None:
    """Print every key of a profile with its value, as YAML.

    `rlx train -f FILE` takes what this prints.
    Without a profile, ./rlx.yaml is shown.
    """
    config = resolve_words(words or [], None).config
    if as_json:
        ui.out_json(dataclasses.asdict(config))
    else:
        ui.out(write.dump(config).rstrip("\n"))
