"""Two extras or engines that exclude each other: what the one line says, and the exact command for each."""

import re
import shlex
import sys
from collections.abc import Sequence
from itertools import combinations

from rlx.env import lockfile, resolution
from verl_core.config.effective import extras as extras_of
from verl_core.config.errors import EnvError
from verl_core.config.schema import RlxConfig, RolloutConfig

_PAIRED = ("--extra", "--engine")
ENGINE_KEY = re.compile(r"--engine|\+?(?:actor_rollout_ref\.)?rollout\.(?:engine|name)")
"""What names an engine on a command line: the option, rlx's key, veRL's key."""


def excluded(chosen: Sequence[str], one: str, other: str) -> EnvError:
    """The error for two of the chosen extras that exclude each other."""
    commands = [_command(chosen, keep, drop) for keep, drop in ((one, other), (other, one))]
    return EnvError(f"{one} and {other} exclude each other, pick one{_reason(one, other)}", " or ".join(commands))


def check_engines(words: Sequence[str]) -> None:
    """EnvError when `key=value` words or `--engine` options name two rollout engines that exclude each other."""
    for one, other in combinations(dict.fromkeys(engine for word in words for engine in _engines(word)), 2):
        extras = _extra(one), _extra(other)
        if extras[0] and extras[1] in lockfile.excludes(extras[0]):
            raise EnvError(
                f"the engines {one} and {other} exclude each other, pick one{_reason(*extras)}",
                " or ".join(_keep_engine(keep) for keep in (one, other)),
            )


def _engines(word: str) -> list[str]:
    """The engines that `rollout.engine=...` or `--engine=...` names; none when the word is about something else."""
    key, _, value = word.partition("=")
    if not ENGINE_KEY.fullmatch(key.strip()):
        return []
    return [name for text in value.strip(" []()").split(",") if (name := text.strip(" '\""))]


def _extra(engine: str) -> str | None:
    """The extra that an engine needs on this machine; None when it needs none or does not exist."""
    found = set(extras_of(RlxConfig(rollout=RolloutConfig(engine=engine))))  # type: ignore[arg-type]
    of_no_engine = set(extras_of(RlxConfig(rollout=RolloutConfig(engine="hf"))))
    return next(iter(found - of_no_engine), None)


def _reason(one: str | None, other: str | None) -> str:
    """How their locked versions differ: one package is named, if possible one that extras list by name."""
    if one is None or other is None:
        return ""
    ours, theirs = resolution.versions((one,)), resolution.versions((other,))
    differing = [name for name in ours if theirs.get(name, ours[name]) != ours[name]]
    if not differing:
        return ""
    listed = resolution.pins(one)
    name = min(differing, key=lambda name: (name not in listed, name))
    rest = f" ({len(differing) - 1} more packages differ)" if differing[1:] else ""
    return f": the lock has {name} {ours[name]} for {one}, {theirs[name]} for {other}{rest}"


def _command(chosen: Sequence[str], keep: str, drop: str) -> str:
    """The user's own command line without what asks for `drop`; a plain sync when nothing there does."""
    words, theirs = _command_line()
    mended = _without(words, drop) or _other_engine(words, keep)
    if mended is None:
        mended, theirs = ["env", "sync", *(f"--extra={extra}" for extra in chosen if extra != drop)], []
    return _shown(mended, theirs)


def _command_line() -> tuple[list[str], list[str]]:
    """The words of the running command, options as `--name=value`; and `--` with another program's words."""
    argv = sys.argv[1:]
    end = argv.index("--") if "--" in argv else len(argv)
    words: list[str] = []
    for word in argv[:end]:
        if words and words[-1] in _PAIRED:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words, argv[end:]


def _without(words: Sequence[str], drop: str) -> list[str] | None:
    """The words without those that ask for the extra `drop`; None when none does."""
    left = [word for word in words if word != f"--extra={drop}" and drop not in map(_extra, _engines(word))]
    return left if len(left) < len(words) else None


def _other_engine(words: Sequence[str], keep: str) -> list[str] | None:
    """Where `--extra` adds an engine to a profile that names another one: the words with `--engine` instead."""
    option = f"--extra={keep}"
    if option not in words or _extra(keep) != keep:
        return None
    return [f"--engine={keep}" if word == option else word for word in words]


def _keep_engine(keep: str) -> str:
    """The running command with one word for the engine, `keep`, in the place of the first."""
    words, theirs = _command_line()
    left: list[str] = []
    for word in words:
        if not _engines(word):
            left.append(word)
        elif not any(map(_engines, left)):
            left.append(f"{word.partition('=')[0]}={keep}")
    return _shown(left, theirs)


def _shown(words: Sequence[str], theirs: Sequence[str]) -> str:
    """A command line of rlx as a person types it."""
    typed = [part for word in words for part in (word.split("=", 1) if word.startswith(_PAIRED) else [word])]
    return f"`{shlex.join(['rlx', *typed, *theirs])}`"
