"""`rlx env`: make, list and use the environments that jobs run in. Each of `PARTS` adds its commands."""

import importlib

import typer

PARTS = (
    "env_list",
    "env_sync",
    "env_run",
    "env_shell",
    "env_lock",
    "env_prefetch",
    "env_pack",
    "env_dockerfile",
    "env_clean",
)

app = typer.Typer(
    help="Make, list and use the software environments of jobs.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)

for part in PARTS:
    importlib.import_module(f"rlx.commands.{part}").register(app)
