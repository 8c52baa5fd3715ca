"""From a profile, a project's rlx.yaml and `key=value` words to one checked configuration and every value's origin.

Layers, later wins: schema defaults < the profile and what it `extends:` < the file < the command line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_core.config.checks import check
from verl_core.config.errors import ConfigError, UserError
from verl_core.config.files import path_fault
from verl_core.config.key_checks import each_key
from verl_core.config.layers import Layer, profile_names, read_layers
from verl_core.config.merge import assign, interpolate, overlay
from verl_core.config.overrides import Override, parse
from verl_core.config.schema import RlxConfig
from verl_core.config.typed import Problem, build, leaves, plain, steps
from verl_core.config.user_module import declare_module

__all__ = ["PROJECT_FILE", "Resolved", "load_tree", "profile_names", "resolve"]

PROJECT_FILE = "rlx.yaml"
COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Setting:
    """One value that a layer sets."""

    origin: str
    key: str
    """Dotted, with list positions in brackets."""
    value: Any
    """As written: an interpolation is not resolved."""


@dataclass
class Resolved:
    config: RlxConfig
    """What was asked for; `effective.effective` fills in what is derived."""
    origins: dict[str, str]
    """Dotted key -> "default", "profile NAME", the file's path, or "command line"."""
    warnings: list[str]
    """Keys without effect; errors under strict."""
    profile: str
    """Name for `<profile>-<n>`: the profile's, also when a file names it by `extends:`."""
    notes: list[str] = field(default_factory=list)
    """How veRL's keys were read; never errors."""
    settings: list[Setting] = field(default_factory=list)
    """Everything that the layers set, lowest layer first."""


def resolve(
    profile: str | None, overrides: Sequence[str] = (), file: Path | None = None, strict: bool = False
) -> Resolved:
    """The configuration of a run.

    `profile` is a name in profiles/ or the path of a YAML file; it takes the place of the file's own `extends:`. With
    neither profile nor file, ./rlx.yaml is read. Raises UserError with every problem of every layer at once.
    """
    if profile is None and file is None:
        if not Path(PROJECT_FILE).is_file():
            raise UserError(
                f"no profile given and no {PROJECT_FILE} here",
                f"name a profile: {', '.join(profile_names())}; or make a project with `rlx init`",
            )
        file = Path(PROJECT_FILE)
    name, layers = read_layers(profile, file)
    words = [parse(word) for word in overrides]
    given = [word for word in words if isinstance(word, Override) and word.path]
    failures = [
        *(problem.line(layer.origin) for layer in layers for problem in layer.problems),
        *(word.line(COMMAND_LINE) for word in words if isinstance(word, Problem)),
    ]
    settings = _settings(layers, given)
    try:
        config = load_tree(_merge(layers, given, settings), "after interpolation")
    except ConfigError as error:
        raise _refusal([*failures, *error.problems]) from None
    origins = _origins(plain(config), settings)
    if failures:  # the rest is looked at key by key; sums would be made of values that nobody asked for
        raise _refusal([*failures, *each_key(config, origins)])
    report = check(config, origins, [*(layer.origin for layer in layers), COMMAND_LINE])
    if refused := [*report.errors, *(report.warnings if strict else ())]:
        raise _refusal(refused)
    notes = [note for layer in layers for note in layer.notes]
    notes += [word.note for word in words if isinstance(word, Override) and word.note]
    return Resolved(config, origins, report.warnings, name, notes, settings)


def of_words(overrides: Sequence[str]) -> RlxConfig:
    """The schema's defaults with these words, each key checked by itself: for what reads a part of a configuration and
    runs nothing. Raises UserError with every problem at once."""
    words = [parse(word) for word in overrides]
    given = [word for word in words if isinstance(word, Override) and word.path]
    settings = _settings([], given)
    config = load_tree(_merge([], given, settings), "after interpolation")
    failures = [word.line(COMMAND_LINE) for word in words if isinstance(word, Problem)]
    if failures := [*failures, *each_key(config, _origins(plain(config), settings))]:
        raise _refusal(failures)
    return config


def load_tree(tree: Any, origin: str) -> RlxConfig:
    """A configuration from plain values that stand for themselves (no `extends`, no `${...}`, no veRL keys).

    Raises UserError with every problem at once; `origin` says where the values came from.
    """
    problems: list[Problem] = []
    config = build(RlxConfig, tree, "", problems)
    if problems:
        raise _refusal([problem.line(origin) for problem in problems])
    _declare(config.algorithm.module)
    return config


def _declare(module: str | None) -> None:
    """Names that the keys may have, and what they need. A path that no file system takes is said with its key."""
    if module and not path_fault(module):
        try:
            declare_module(module)
        except UserError as error:
            raise ConfigError([error.message], error.hint or "see docs/algorithms.md") from None


def _refusal(problems: Sequence[str]) -> ConfigError:
    return ConfigError(problems, "`rlx config explain KEY` says what a key takes, `rlx config schema` lists all keys")


def _settings(layers: Sequence[Layer], words: Sequence[Override]) -> list[Setting]:
    """Every leaf that the layers and then the words set."""
    found = [Setting(layer.origin, key, value) for layer in layers for key, value in leaves(layer.tree)]
    return found + [Setting(COMMAND_LINE, key, value) for word in words for key, value in leaves(word.value, word.path)]


def _merge(layers: Sequence[Layer], words: Sequence[Override], settings: Sequence[Setting]) -> dict[str, Any]:
    """All layers over the defaults as one tree of plain values, interpolations resolved. Raises ConfigError."""
    tree = plain(RlxConfig())
    for layer in layers:
        overlay(tree, layer.tree)
    failures = []
    for word in words:
        try:
            assign(tree, steps(word.path), word.value)
        except IndexError as error:
            failures.append(Problem(word.path, word.value, str(error)).line(COMMAND_LINE))
    tree, problems = interpolate(tree)
    origins = _origins(tree, settings)
    failures += [problem.line(origins.get(problem.path.split("[")[0], "interpolation")) for problem in problems]
    if failures:
        raise _refusal(failures)
    return tree


def _origins(tree: Mapping[str, Any], settings: Sequence[Setting]) -> dict[str, str]:
    """Who set each leaf last: itself, an item of its list, or an interpolation for the mapping it lies in."""
    origins = dict.fromkeys((path for path, _ in leaves(tree)), "default")
    for setting in settings:
        if setting.key in origins:
            origins[setting.key] = setting.origin
            continue
        for path in origins:
            inside = path.startswith(f"{setting.key}.") and setting.value != {}  # an empty mapping changes nothing
            if inside or setting.key.startswith(f"{path}["):
                origins[path] = setting.origin
    return origins
