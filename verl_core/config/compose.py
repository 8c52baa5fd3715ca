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
from verl_core.config.overrides import Override, parse
from verl_core.config.schema import RlxConfig
from verl_core.config.typed import Problem, build, leaves, plain

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
    report = checks.check(config, origins)
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
    from omegaconf import OmegaConf  # 0.2 s, and only here
    from omegaconf.errors import OmegaConfBaseException

    merged: Any = OmegaConf.create(plain(RlxConfig()))
    failures = []
    for layer in layers:
        try:
            merged = OmegaConf.merge(merged, OmegaConf.create(layer.tree))
        except OmegaConfBaseException as error:
            failures.append(f"{layer.origin}: {_first_line(error)}")
    for word in words:
        try:
            OmegaConf.update(merged, word.path, word.value, merge=True, force_add=True)
        except (OmegaConfBaseException, IndexError) as error:
            failures.append(Problem(word.path, word.value, _first_line(error)).line(COMMAND_LINE))
    _stop(failures)

    def resolved(node: Any, path: str) -> Any:
        if not OmegaConf.is_config(node):
            return node
        is_list = OmegaConf.is_list(node)
        items: dict[Any, Any] = {}
        for key in range(len(node)) if is_list else node.keys():
            place = f"{path}[{key}]" if is_list else f"{path}.{key}" if path else str(key)
            try:
                items[key] = resolved(node[key], place)
            except (OmegaConfBaseException, RecursionError) as error:
                failures.append(f"{place}: {_first_line(error)}")
        return list(items.values()) if is_list else items

    tree = resolved(merged, "")
    _stop(failures)
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


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
