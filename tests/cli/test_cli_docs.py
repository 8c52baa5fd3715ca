"""docs/commands is what `--help` says; the other pages name commands, keys and files that exist."""

import re

import pytest
from typer.main import get_command

from rlx.commands import COMMANDS
from rlx.docs import FOLDER, pages
from rlx.main import app
from tests.conftest import ROOT
from verl_core.config.schema import RlxConfig
from verl_core.config.typed import MISSING, fields_of, steps, type_at
from verl_core.config.verl_keys import FIXED, RENAMED

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "algorithms").glob("*.md")),
]
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
SECTIONS = "|".join(fields_of(RlxConfig))


def code_of(page) -> list[str]:
    return CODE.findall(page.read_text(encoding="utf-8"))


def test_command_pages_are_current():
    on_disk = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert on_disk == pages(), "stale: run `python -m rlx.docs` in the checkout"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_commands_exist(page):
    group = get_command(app)
    for name, second in re.findall(r"(?<![\w./-])rlx ([a-z]+)(?: ([a-z]+))?", "\n".join(code_of(page))):
        assert name in COMMANDS, f"rlx {name}"
        subcommands = getattr(group.get_command(None, name), "commands", None)
        assert not subcommands or not second or second in subcommands, f"rlx {name} {second}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_keys_exist(page):
    keys = re.findall(
        rf"(?<![\w./*-])((?:{SECTIONS})(?:\.[a-z_]+|\[\d\])+)(?![\w(/*]|\.[\w*])", "\n".join(code_of(page))
    )
    for key in keys:
        if not key.endswith((".json", ".jsonl", ".py", ".generate")):
            assert type_at(steps(key)) is not MISSING or key in RENAMED or key in FIXED, key


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
