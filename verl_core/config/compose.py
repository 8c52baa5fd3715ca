"""From a profile, a project's rlx.yaml and `key=value` words to one checked configuration and every value's origin.

Layers, later wins: schema defaults < the profile and what it `extends:` < the file < the command line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_core.config import checks
from verl_core.config.errors import UserError
from verl_core.config.layers import Layer, profile_names, read_layers
from verl_core.config.merge import assign, interpolate, overlay
from verl_core.config.overrides import Override, parse
from verl_core.config.schema import RlxConfig
from verl_core.config.typed import Problem, build, leaves, plain, steps

__all__ = ["PROJECT_FILE", "Resolved", "load_tree", "profile_names", "resolve"]

PROJECT_FILE = "rlx.yaml"
COMMAND_LINE = "command line"


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
    _stop(
        [
            *(failure for layer in layers for failure in layer.failures),
            *(word.line(COMMAND_LINE) for word in words if isinstance(word, Problem)),
        ]
    )
    tree = _merge(layers, given)
    config = load_tree(tree, "after interpolation")
    origins = _origins(tree, layers, given)
    report = checks.check(config, origins, [*(layer.origin for layer in layers), COMMAND_LINE])
    _stop([*report.errors, *(report.warnings if strict else ())])
    notes = [note for layer in layers for note in layer.notes]
    notes += [word.note for word in words if isinstance(word, Override) and word.note]
    return Resolved(config, origins, report.warnings, name, notes)


def load_tree(tree: Any, origin: str) -> RlxConfig:
    """A configuration from plain values that stand for themselves (no `extends`, no `${...}`, no veRL keys).

    Raises UserError with every problem at once; `origin` says where the values came from.
    """
    problems: list[Problem] = []
    config = build(RlxConfig, tree, "", problems)
    _stop([problem.line(origin) for problem in problems])
    return config


def _stop(failures: Sequence[str]) -> None:
    """Raises one UserError for all failures, if there are any."""
    hint = "`rlx profile show PROFILE` lists every key with its value"
    if len(failures) == 1:
        raise UserError(failures[0], hint)
    if failures:
        raise UserError("\n  ".join([f"{len(failures)} problems in the configuration:", *failures]), hint)


def _merge(layers: Sequence[Layer], words: Sequence[Override]) -> dict[str, Any]:
    """All layers over the defaults as one tree of plain values, interpolations resolved."""
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
    origins = _origins(tree, layers, words)
    _stop([*failures, *(problem.line(origins.get(problem.path, "interpolation")) for problem in problems)])
    return tree


def _origins(tree: Mapping[str, Any], layers: Sequence[Layer], words: Sequence[Override]) -> dict[str, str]:
    """Who set each leaf last: itself, an item of its list, or the mapping it lies in."""
    set_by = {path: layer.origin for layer in layers for path, _ in leaves(layer.tree)}
    for word in words:
        set_by |= dict.fromkeys((path for path, _ in leaves(word.value, word.path)), COMMAND_LINE)
    origins = {}
    for path, _ in leaves(tree):
        origins[path] = "default"
        for key, origin in set_by.items():
            if key == path or key.startswith(f"{path}[") or path.startswith(f"{key}."):
                origins[path] = origin
    return origins
