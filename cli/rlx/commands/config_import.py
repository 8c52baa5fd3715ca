"""`rlx config import`: a veRL launch script as an `rlx.yaml`, and what became of every word of it."""

from collections.abc import Sequence
from pathlib import Path

import typer

from rlx import text_files, ui
from rlx.arguments import DRY_RUN_OPTION, JSON_OPTION, refuse_empty
from verl_core.config.errors import UserError
from verl_core.config.files import user_path
from verl_core.config.verl_report import Item, Report


def register(app: typer.Typer) -> None:
    app.command("import")(import_)


def import_(
    script: Path = typer.Argument(
        ..., metavar="SCRIPT.sh", help="A shell script that starts veRL. It is read, not run."
    ),
    out: Path = typer.Option(Path("rlx.yaml"), "--out", "-o", help="File to write."),
    variables: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="A variable the script expects; 1=VALUE: an argument."
    ),
    extends: str = typer.Option(None, "--extends", help="Profile to extend, in place of the nearest."),
    launch: int = typer.Option(1, "--launch", help="Which launch, when the script has several."),
    force: bool = typer.Option(False, "--force", help="Replace the file."),
    dry_run: bool = DRY_RUN_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Read a veRL launch script and write rlx.yaml.

    The report says what was carried over, renamed, is always so here, has no counterpart, or is not decided.
    """
    from verl_core.config.verl_import import import_script

    refuse_empty(extends, "--extends")
    out = user_path(out, "--out")
    if text_files.taken(out) and not force and not dry_run:
        raise UserError(f"{out} exists", "give --force to replace it, --out FILE to write another, or --dry-run")
    imported = import_script(_read(script), script.name, _variables(variables), extends, launch)
    if not dry_run:
        _write(out, imported.text)
    if as_json:
        ui.out_json({"out": None if dry_run else str(out), "text": imported.text, **imported.report.to_json()})
        return
    if dry_run:
        ui.out(imported.text)
    for line in _lines(imported.report):
        ui.out(line)
    ui.talk("nothing is written" if dry_run else f"{out} is written; `rlx config check {out}` looks at it")


def _read(script: Path) -> str:
    try:
        return user_path(script, "SCRIPT.sh").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {script}: {error.strerror}", "check the path") from None


def _write(out: Path, text: str) -> None:
    try:
        text_files.write(out, text)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}", "give another place with --out FILE") from None


def _variables(words: Sequence[str]) -> dict[str, str]:
    for word in words:
        name, equals, _ = word.partition("=")
        if not equals or not (name.isidentifier() or name.isdigit()):
            raise typer.BadParameter(f"--set takes NAME=VALUE; got {word!r}")
    return dict(word.split("=", 1) for word in words)


def _lines(report: Report) -> list[str]:
    """The report as text, one block a kind; kinds without entries are left out."""
    lines = [f"{report.script}, line {report.line}: {report.module}"]
    lines.append(
        f"extends {report.extends}" if report.extends else "extends no profile: none is nearer than the defaults"
    )
    blocks: tuple[tuple[str, Sequence[Item | str]], ...] = (
        ("carried over", report.carried),
        ("renamed", report.renamed),
        ("always so here", report.always),
        ("veRL's defaults, written out because rlx's differ", report.defaults),
        ("without effect", report.idle),
        ("without counterpart", report.without),
        ("not decided", report.undecided),
        ("environment variables: set them where you start rlx", report.environment),
        ("about the script", report.notes),
        ("`rlx config check` will refuse", report.breaks),
        ("plans and dry-runs, does not run yet", report.later),
    )
    for title, items in blocks:
        if items:
            lines += ["", f"{title} ({len(items)})", *(f"  {_item(item)}" for item in items)]
    return lines


def _item(item: Item | str) -> str:
    if isinstance(item, str):
        return item
    from verl_core.config.verl_file import flow

    value = "" if item.value is None else item.value if isinstance(item.value, str) else flow(item.value)
    text = f"{item.key}={value}" if value else item.key
    text += f" -> {item.ours}" if item.ours else ""
    return " ".join((f"{text}: {item.text}" if item.text else text).split())
