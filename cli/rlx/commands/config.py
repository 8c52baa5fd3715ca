"""`rlx config`: look at a configuration, check it, compare two, and look keys up."""

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

PARTS = {
    "show": "config_show",
    "check": "config_check",
    "schema": "config_schema",
    "diff": "config_diff",
    "explain": "config_explain",
    "import": "config_import",
}
"""Command -> the module beside this one whose `register(app)` adds it, imported when the command runs."""


class Parts(TyperGroup):
    """The group of `PARTS`; one of them does not pay for what another imports."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.commands = dict.fromkeys(PARTS)  # type: ignore[assignment]  # names for typer's "did you mean"

    def list_commands(self, ctx: Any) -> list[str]:
        return list(PARTS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in PARTS:
            return None
        part = typer.Typer(rich_markup_mode=None, add_completion=False)
        importlib.import_module(f"rlx.commands.{PARTS[cmd_name]}").register(part)
        command = typer.main.get_command(part)
        command.name = cmd_name
        return command


app = typer.Typer(cls=Parts, rich_markup_mode=None, add_completion=False, no_args_is_help=True)


@app.callback()
def config() -> None:
    """Look at a configuration, check it, compare two, look keys up, read veRL's scripts."""
