"""Writes docs/commands/<command>.md from `--help`: `python -m rlx.docs` in the checkout. A test keeps them current."""

import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.testing import CliRunner

from rlx.commands import COMMANDS
from rlx.main import app

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "commands"
WIDTH = 100


def pages() -> dict[str, str]:
    """File name -> text of every command's page, and of the index."""
    texts = {"README.md": _page("rlx", [[]])}
    for name in COMMANDS:
        texts[f"{name}.md"] = _page(f"rlx {name}", list(_with_subcommands([name])))
    return texts


def _with_subcommands(words: list[str]) -> Iterator[list[str]]:
    """The command and, for a group, each of its commands."""
    yield words
    group = typer.main.get_command(app)
    command = group.get_command(None, words[0])  # type: ignore[attr-defined]
    yield from ([*words, name] for name in getattr(command, "commands", {}))


def _page(title: str, commands: list[list[str]]) -> str:
    parts = [f"# {title}", "<!-- made by `python -m rlx.docs` from `--help`; edit the command, not this page -->"]
    for words in commands:
        if len(words) > 1:
            parts.append(f"## rlx {' '.join(words)}")
        parts.append(f"```\n{_help(words)}\n```")
    if not commands[0]:
        rows = [f"| [{name}]({name}.md) | {entry.summary} |" for name, entry in COMMANDS.items()]
        parts.append("\n".join(["| command | what it does |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _help(words: list[str]) -> str:
    environment = {"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH), "NO_COLOR": "1"}
    result = CliRunner().invoke(app, [*words, "--help"], env=environment, prog_name="rlx")
    return "\n".join(line.rstrip() for line in result.stdout.rstrip().splitlines())


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, text in pages().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
    print(f"{len(pages())} pages in {FOLDER}", file=sys.stderr)
