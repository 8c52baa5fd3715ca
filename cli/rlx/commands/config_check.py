"""`rlx config check`: everything that is wrong with configurations, before anything runs."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

import typer

from rlx import ui
from rlx.arguments import JSON_OPTION
from rlx.config_sources import Source, split_sources
from verl_core.config.compose import PROJECT_FILE, resolve
from verl_core.config.effective import effective, total_ranks, uses_rollout
from verl_core.config.errors import ConfigError, UserError
from verl_core.config.unbuilt import unbuilt

WORDS = typer.Argument(
    None,
    metavar="PROFILE | FILE | KEY=VALUE",
    help="Profiles, files, run directories or project folders, and settings that each is checked with.",
)


def register(app: typer.Typer) -> None:
    app.command()(check)


@dataclass
class Verdict:
    """What the check of one configuration found."""

    name: str
    ok: bool
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Keys without effect, when lenient."""
    notes: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    """Parts that this release does not run yet."""
    summary: str = ""


def check(
    words: list[str] = WORDS,
    lenient: bool = typer.Option(
        False, "--lenient/--strict", help="Warn of keys without effect, as `rlx train` does, instead of refusing them."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Check configurations before they run.

    All errors of each are reported at once, with exit code 1. Without a name, ./rlx.yaml is checked. Keys without
    effect are errors, unless --lenient. Parts that come with a later release are warnings.
    """
    sources, settings = split_sources(words or [])
    if not sources:
        if not Path(PROJECT_FILE).is_file():
            resolve(None)  # refuses, and says what could be named
        sources = [Source(PROJECT_FILE)]
    settings += [word for source in sources for word in source.overrides if word not in settings]
    verdicts = [_verdict(Source(source.name, settings), lenient) for source in sources]
    if as_json:
        ui.out_json([asdict(verdict) for verdict in verdicts])
    for verdict in verdicts if not as_json else ():
        _print(verdict)
    if any(verdict.errors for verdict in verdicts):
        raise typer.Exit(UserError.exit_code)


def _verdict(source: Source, lenient: bool) -> Verdict:
    try:
        resolved = source.resolve(strict=not lenient)
    except ConfigError as error:
        return Verdict(source.name, False, errors=error.problems)
    except UserError as error:  # a file that cannot be read, a profile that does not exist
        return Verdict(source.name, False, errors=[error.message])
    e = effective(resolved.config)
    engine = f", engine {e.rollout.engine}" if uses_rollout(e) else ""
    summary = f"{e.algorithm.name}{engine}, {e.model.path}, {total_ranks(e)} rank{'s' * (total_ranks(e) > 1)}"
    return Verdict(source.name, True, [], resolved.warnings, resolved.notes, [*unbuilt(e)], summary)


def _print(verdict: Verdict) -> None:
    """A line on stdout for each configuration; what is to say about it on stderr."""
    for text in verdict.notes:
        ui.note(f"{verdict.name}: {text}")
    for text in [*verdict.warnings, *verdict.later]:
        ui.warn(f"{verdict.name}: {text}")
    if verdict.ok:
        ui.out(f"ok: {verdict.name} ({verdict.summary})")
        return
    ui.out(f"not ok: {verdict.name}")
    for text in verdict.errors:
        ui.error(f"{verdict.name}: {text}")
