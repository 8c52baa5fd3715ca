"""`rlx profile`: the profiles that come with rlx. Listing and copying stand in files of their own."""

import typer

from rlx import ui
from rlx.arguments import JSON_OPTION, WORDS_HELP, resolve_words
from rlx.commands import config_diff, profile_copy, profile_list
from verl_core.config import write
from verl_core.config.typed import plain

app = typer.Typer(
    help="List the profiles, show what one sets, copy or compare them.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)
profile_list.register(app)


@app.command()
def show(
    words: list[str] = typer.Argument(None, metavar="PROFILE | KEY=VALUE", help=WORDS_HELP),
    changed: bool = typer.Option(False, "--changed", help="Only the keys whose value differs from the default."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Print every key of a profile with its value, as YAML.

    `rlx train -f FILE` takes what this prints.
    Without a profile, ./rlx.yaml is shown.
    """
    config = resolve_words(words or [], None).config
    if as_json:
        ui.out_json(write.changed(config) if changed else plain(config))
    else:
        ui.out((write.dump_tree(write.changed(config)) if changed else write.dump(config)).rstrip("\n"))


profile_copy.register(app)
config_diff.register(app)
