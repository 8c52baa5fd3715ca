"""What several commands share: telling a profile from `key=value` words, resolving them, and saying what came of it."""

from collections.abc import Sequence
from pathlib import Path

import typer

from rlx import ui
from rlx.env.conflicts import check_engines
from verl_core.config.compose import Resolved, resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.files import user_path
from verl_core.config.unbuilt import unbuilt

JSON_OPTION = typer.Option(False, "--json", help="Print one JSON value on stdout.")
DRY_RUN_OPTION = typer.Option(False, "--dry-run", help="Say what would happen, write nothing.")
VERBOSE_OPTION = typer.Option(False, "--verbose", "-v", help="Show tracebacks.")
FILE_OPTION = typer.Option(
    None, "--file", "-f", help="Configuration file between the profile and the settings, as for `rlx train`."
)
WORDS_HELP = "A profile (see `rlx profile ls`) and any number of key=value settings."


def split_words(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """(profile, overrides): the one word without `=` is the profile. Usage error for a second one, UserError for an
    empty one (an unset variable of a script must not start a run of its own), EnvError for two rollout engines that
    exclude each other."""
    if "" in words:
        refuse_empty("", "PROFILE")
    overrides = [word for word in words if "=" in word or word.startswith("+") or is_deletion(word)]
    profiles = [word for word in words if word not in overrides]
    if len(profiles) > 1:
        raise typer.BadParameter(f"one profile at most, and settings are key=value; got {' and '.join(profiles)}")
    check_engines(overrides)
    return (profiles[0] if profiles else None), overrides


def refuse_empty(name: str | None, what: str) -> None:
    """UserError for an empty name, with the argument that has it; None is none at all."""
    if name == "":
        raise UserError(f"{what} is empty", "an unset variable of a script? `rlx ... --help` says what goes there")


def is_deletion(word: str) -> bool:
    """Whether a word is Hydra's `~key`, which is refused as a setting, and not a file in somebody's home."""
    return word.startswith("~") and "/" not in word


def resolve_words(words: Sequence[str], file: Path | None, strict: bool = False) -> Resolved:
    """Resolve a command line; notes and warnings are said on stderr. UserError with everything that is wrong."""
    profile, overrides = split_words(words)
    resolved = resolve(profile, overrides, file, strict)
    say(resolved)
    return resolved


def say(resolved: Resolved) -> None:
    """Notes and warnings of a configuration, on stderr."""
    for text in resolved.notes:
        ui.note(text)
    for text in resolved.warnings:
        ui.warn(text)


def existing(path: Path, what: str) -> Path:
    """The path, if it is there; UserError naming the argument otherwise."""
    if not (found := user_path(path, what)).exists():
        raise UserError(f"{what} {path} does not exist", "check the path")
    return found


def refuse_unbuilt(resolved: Resolved) -> None:
    """UserError for a configuration that this release plans and dry-runs, but does not run."""
    if parts := list(unbuilt(effective(resolved.config))):
        raise UserError("\n  ".join(parts), "`rlx train ... --dry-run` and `rlx plan` work already")
