"""From a profile, a project's rlx.yaml and `key=value` words to one checked configuration and every value's origin.

Layers, later wins: schema defaults < the profile and what it `extends:` < the file < the command line.
"""

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_core.config import checks, keys, yaml_text
from verl_core.config.errors import UserError
from verl_core.config.files import profiles_dir
from verl_core.config.overrides import Override, parse
from verl_core.config.schema import RlxConfig
from verl_core.config.typed import MISSING, Problem, build, fields_of, leaves, plain

PROJECT_FILE = "rlx.yaml"


@dataclass
class Resolved:
    config: RlxConfig
    """What was asked for; `effective.effective` fills in what is derived."""
    origins: dict[str, str]
    """Dotted key -> "default", "profile NAME", the file's path, or "command line"."""
    warnings: list[str]
    """Keys without effect and the like; errors under strict."""
    profile: str
    """Name for `<profile>-<n>`: the profile's, also when a file names it by `extends:`."""
    notes: list[str] = field(default_factory=list)
    """How veRL's keys were read; never errors."""


@dataclass
class _Layer:
    origin: str
    tree: dict[str, Any]


def profile_names() -> list[str]:
    return sorted(path.stem for path in profiles_dir().glob("*.yaml"))


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
    composer = _Composer()
    name = composer.add_files(profile, file)
    words = [override for word in overrides if (override := composer.read_override(word))]
    composer.stop_if_wrong()
    tree = composer.merge(words)
    composer.stop_if_wrong()
    config = composer.build(tree)
    composer.stop_if_wrong()

    origins = composer.origins(tree, words)
    report = checks.check(config, origins)
    failures = [*report.errors, *(report.warnings if strict else ())]
    stop(failures)
    return Resolved(config, origins, report.warnings, name, composer.notes)


def load_tree(tree: Any, origin: str) -> RlxConfig:
    """A whole configuration from plain values that stand for themselves (no `extends`, no `${...}`, no veRL keys).

    Raises UserError with every problem at once.
    """
    problems: list[Problem] = []
    config = build(RlxConfig, tree, "", problems)
    stop([problem.line(origin) for problem in problems])
    return config


def stop(failures: Sequence[str]) -> None:
    """Raises one UserError for all failures, if there are any."""
    hint = "`rlx profile show PROFILE` lists every key with its value"
    if len(failures) == 1:
        raise UserError(failures[0], hint)
    if failures:
        raise UserError("\n  ".join([f"{len(failures)} problems in the configuration:", *failures]), hint)


class _Composer:
    """Collects layers and what is wrong with them."""

    def __init__(self) -> None:
        self.layers: list[_Layer] = []
        self.failures: list[str] = []
        self.notes: list[str] = []

    def stop_if_wrong(self) -> None:
        stop(self.failures)

    def add_files(self, profile: str | None, file: Path | None) -> str:
        """Adds the layers of profile and file, lowest first; returns the profile's name."""
        top, parent = self._read_file(file, str(file)) if file else (None, None)
        if profile and parent and parent != profile:
            self.notes.append(f"{file}: extends: {parent} gives way to the profile named, {profile}")
        base = profile or parent
        if base is None:
            assert file is not None and top is not None
            self.layers = [top]
            return file.stem
        beside = None if profile else file
        name = Path(base).stem if _is_path(base) else base
        chain: list[_Layer] = []
        seen: list[Path] = [] if file is None else [file.resolve()]
        while base:
            path, shown = _find(base, beside)
            if path.resolve() in seen:
                names = " -> ".join(p.stem for p in [*seen, path])
                raise UserError(f"{shown}: `extends:` goes round in a circle: {names}", "remove one of the `extends:`")
            seen.append(path.resolve())
            layer, base = self._read_file(path, shown)
            chain.insert(0, layer)
            beside = path
        self.layers = [*chain, *([top] if top else [])]
        return name

    def _read_file(self, path: Path, origin: str) -> tuple[_Layer, str | None]:
        try:
            tree = yaml_text.read(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"no file {path}", "check the path after -f or `extends:`") from None
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}", "correct the file: it must be YAML in UTF-8") from None
        tree = {} if tree is None else tree
        if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
            raise UserError(f"{path} is not a mapping of keys to values", "write lines like `trainer: {seed: 1}`")
        parent = tree.pop("extends", None)
        if parent is not None and not isinstance(parent, str):
            raise UserError(f"{path}: extends: {parent!r} is not a profile's name", "write `extends: NAME`")
        tree = _without_empty_sections(tree, RlxConfig)
        translated = keys.translate_tree(tree)
        self.notes += translated.notes
        self._add_failures([*translated.problems, *_problems(translated.tree)], origin)
        return _Layer(origin, translated.tree), parent

    def read_override(self, word: str) -> Override | None:
        override = parse(word)
        if isinstance(override, Problem):
            self._add_failures([override], "command line")
            return None
        if override.note:
            self.notes.append(override.note)
        return override if override.path else None

    def merge(self, words: Sequence[Override]) -> dict[str, Any]:
        """All layers as one tree of plain values, interpolations resolved."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        merged = OmegaConf.create(plain(RlxConfig()))
        for layer in self.layers:
            try:
                merged = OmegaConf.merge(merged, OmegaConf.create(layer.tree))  # type: ignore[assignment]
            except OmegaConfBaseException as error:
                self.failures.append(f"{layer.origin}: {_first_line(error)}")
        for word in words:
            try:
                OmegaConf.update(merged, word.path, word.value, merge=True, force_add=True)
            except (OmegaConfBaseException, IndexError) as error:
                self._add_failures([Problem(word.path, word.value, _first_line(error))], "command line")
        self.stop_if_wrong()
        return self._resolve(merged, "")

    def _resolve(self, node: Any, path: str) -> Any:
        """Plain values of an OmegaConf node; interpolations that fail are added to the failures."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        if not OmegaConf.is_config(node):
            return node
        items: dict[Any, Any] = {}
        for key in node.keys() if OmegaConf.is_dict(node) else range(len(node)):
            place = f"{path}[{key}]" if OmegaConf.is_list(node) else f"{path}.{key}" if path else str(key)
            try:
                items[key] = self._resolve(node[key], place)
            except (OmegaConfBaseException, RecursionError) as error:
                self.failures.append(f"{place}: {_first_line(error)}")
        return list(items.values()) if OmegaConf.is_list(node) else items

    def build(self, tree: dict[str, Any]) -> RlxConfig:
        problems: list[Problem] = []
        config = build(RlxConfig, tree, "", problems)
        self._add_failures(problems, "after interpolation")
        return config

    def origins(self, tree: dict[str, Any], words: Sequence[Override]) -> dict[str, str]:
        set_by: dict[str, str] = {}
        for layer in self.layers:
            set_by |= {path: layer.origin for path, _ in leaves(layer.tree)}
        for word in words:
            value = word.value if isinstance(word.value, dict) else None
            set_by |= {
                f"{word.path}{'.' + p if p else ''}": "command line" for p, _ in (leaves(value) if value else [("", 0)])
            }
        return {path: _origin_of(path, set_by) for path, _ in leaves(tree)}

    def _add_failures(self, problems: Sequence[Problem], origin: str) -> None:
        self.failures += [problem.line(origin) for problem in problems]


def _problems(tree: dict[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    build(RlxConfig, tree, "", problems, partial=True)
    return problems


def _origin_of(path: str, set_by: dict[str, str]) -> str:
    """The last layer that set a leaf, an item of its list, or the mapping it lies in."""
    found = "default"
    for key, origin in set_by.items():
        if key == path or key.startswith(f"{path}[") or path.startswith(f"{key}."):
            found = origin
    return found


def _without_empty_sections(tree: dict[str, Any], section: type) -> dict[str, Any]:
    """Drops sections whose every line is commented out (YAML reads them as null)."""
    kept = {}
    for name, item in tree.items():
        tp = fields_of(section).get(name, MISSING)
        if dataclasses.is_dataclass(tp):
            if item is None:
                continue
            if isinstance(item, dict):
                item = _without_empty_sections(item, tp)  # type: ignore[arg-type]
        kept[name] = item
    return kept


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml"))


def _find(name: str, beside: Path | None) -> tuple[Path, str]:
    """The file of a profile and how messages call it. A path in `extends:` is relative to the file it stands in."""
    if _is_path(name):
        path = Path(name).expanduser()
        return (beside.parent / path if beside else path), name
    path = profiles_dir() / f"{name}.yaml"
    if not path.is_file():
        names = profile_names()
        near = difflib.get_close_matches(name, names, n=3) or names
        place = f" ({beside}: extends)" if beside else ""
        raise UserError(f"no profile {name!r}{place}; did you mean {' or '.join(near)}?", "`rlx profile ls` lists them")
    return path, f"profile {name}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
