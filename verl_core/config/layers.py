"""Reads the YAML layers of a configuration: a profile, what it `extends:`, and a project's file."""

import dataclasses
import difflib
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_core.config import keys, yaml_text
from verl_core.config.errors import UserError
from verl_core.config.files import profiles_dir, user_path
from verl_core.config.schema import RlxConfig
from verl_core.config.typed import MISSING, Problem, build, fields_of, steps


@dataclass
class Layer:
    origin: str
    """What messages and `origins.json` call it: "profile NAME" or the file as given."""
    tree: dict[str, Any]
    """Plain values by rlx's keys, not yet interpolated; what is wrong is left out."""
    extends: str | None = None
    notes: list[str] = field(default_factory=list)
    """How veRL's keys were read."""
    problems: list[Problem] = field(default_factory=list)
    """What is wrong in it."""


def profile_names() -> list[str]:
    return sorted(path.stem for path in profiles_dir().glob("*.yaml"))


def read_layers(profile: str | None, file: Path | None) -> tuple[str, list[Layer]]:
    """The profile's name and the layers, lowest first. At least one argument is given; a profile takes the place of
    the file's own `extends:`.

    Raises UserError for a file that cannot be read, an unknown profile, or `extends:` in a circle.
    """
    top = _read(file, str(file)) if file else None
    parent = profile or (top.extends if top else None)
    chain = [top] if top else []
    if top and profile and top.extends not in {None, profile}:
        top.notes.append(f"{file}: extends: {top.extends} gives way to the profile on the command line, {profile}")
    name = Path(parent).stem if parent and _is_path(parent) else parent or Path(file or "rlx").stem
    beside = None if profile else file
    seen = [file.resolve()] if file else []
    while parent:
        path, origin = _find(parent, beside)
        if path.resolve() in seen:
            circle = " -> ".join(p.stem for p in [*seen, path])
            raise UserError(f"{origin}: `extends:` goes in a circle: {circle}", "remove one of the `extends:`")
        seen.append(path.resolve())
        layer = _read(path, origin)
        chain.insert(0, layer)
        parent, beside = layer.extends, path
    return name, chain


def _read(path: Path, origin: str) -> Layer:
    try:
        tree = yaml_text.read(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no file {path}", "check the path after -f or `extends:`") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "check the path and its permissions") from None
    except ValueError as error:  # includes UnicodeDecodeError
        raise UserError(f"cannot read {path}: {error}", "correct the file: it must be YAML in UTF-8") from None
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise UserError(f"{path} is not a mapping of keys to values", "write lines like `trainer: {seed: 1}`")
    extends = tree.pop("extends", None)
    if extends is not None and not (isinstance(extends, str) and extends):
        raise UserError(f"{path}: extends: {extends!r} is not the name of a profile", "write `extends: NAME`")
    translated = keys.translate_tree(_without_empty_sections(tree, RlxConfig))
    problems = [*translated.problems]
    build(RlxConfig, translated.tree, "", problems, partial=True)
    for problem in problems:
        _leave_out(translated.tree, steps(problem.path.partition("[")[0]))
    return Layer(origin, translated.tree, extends, translated.notes, problems)


def _leave_out(tree: dict[str, Any], path: list[str]) -> None:
    """Removes the value at a path, if it is there."""
    node: Any = tree
    for step in path[:-1]:
        node = node.get(step) if isinstance(node, dict) else None
    if isinstance(node, dict) and path:
        node.pop(path[-1], None)


def _without_empty_sections(tree: dict[str, Any], section: type) -> dict[str, Any]:
    """Drops sections whose every line is commented out, which YAML reads as null."""
    kept = {}
    for name, item in tree.items():
        tp = fields_of(section).get(name, MISSING)
        if dataclasses.is_dataclass(tp):
            if item is None:
                continue
            if isinstance(item, dict):
                item = _without_empty_sections(item, typing.cast(type, tp))
        kept[name] = item
    return kept


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml"))


def _find(name: str, beside: Path | None) -> tuple[Path, str]:
    """The file of a profile and how messages call it. A path in `extends:` is relative to the file it stands in."""
    if _is_path(name):
        path = user_path(name, "profile")
        return (beside.parent / path if beside else path), name
    place = f" (`extends:` of {beside})" if beside else ""
    return profile_path(name, place), f"profile {name}"


def profile_path(name: str, place: str = "") -> Path:
    """The file of a profile that comes with rlx. Raises UserError with near names; `place` says who asks for it."""
    known = profile_names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        question = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"no profile {name!r}{place}{question}", "`rlx profile ls` lists them")
    return profiles_dir() / f"{name}.yaml"
