"""A configuration as a YAML file and back: what is written reads back equal, explicit nulls included."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_core.config import yaml_text
from verl_core.config.compose import load_tree
from verl_core.config.errors import UserError
from verl_core.config.merge import interpolate
from verl_core.config.schema import FACTS, RlxConfig
from verl_core.config.typed import plain

MODULE_COPY = "algorithm.py"
"""A run's copy of the file that algorithm.module names."""

HEADER = (
    "# The resolved configuration of a run, every key. `rlx train -f` takes it; a `${` that is text stands as `\\${`.\n"
)


def dump(config: RlxConfig, comments: Mapping[str, str] | None = None) -> str:
    """YAML of every key, in the schema's order, with a comment behind each key that has one. What a profile says of
    itself is left out where it says nothing, as in a run's."""
    text = dump_tree({key: value for key, value in plain(config).items() if key not in FACTS or value})
    return HEADER + (yaml_text.annotate(text, comments) if comments else text)


def of_run(config: RlxConfig) -> RlxConfig:
    """The configuration without what its profile says of itself: a run with other values would carry stale figures."""
    return dataclasses.replace(config, purpose="", hardware="", memory="", time="")


def changed(config: RlxConfig) -> dict[str, Any]:
    """The keys whose value differs from the schema's default, as plain values."""
    return _differing(plain(config), plain(RlxConfig()))


def dump_tree(tree: dict[str, Any]) -> str:
    """YAML of some keys."""
    return yaml_text.write(_escaped(tree))


def _differing(tree: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, item in tree.items():
        other = base.get(name)
        if item != other or name not in base:
            found[name] = _differing(item, other) if isinstance(item, dict) and isinstance(other, dict) else item
    return found


def load(path: Path) -> RlxConfig:
    """Reads what `dump` wrote. Raises UserError naming the file and every problem in it."""
    try:
        tree = yaml_text.read(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no configuration {path}", "name a run directory: `rlx runs ls` lists them") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}", "write it again: start the run anew") from None
    tree = interpolate(tree)[0] if isinstance(tree, dict) else tree
    return load_tree(_with_own_copy(tree, Path(path).with_name(MODULE_COPY)), str(path))


def _with_own_copy(tree: Any, copy: Path) -> Any:
    """A run's configuration names its copy of the user's algorithms where the file itself is not to be found."""
    match tree:
        case {"algorithm": {"module": str(module)}} if copy.is_file() and not Path(module).expanduser().is_file():
            return tree | {"algorithm": tree["algorithm"] | {"module": str(copy)}}
    return tree


def _escaped(value: Any) -> Any:
    """The values with every `${` written as interpolation's escape, `\\${`, and backslashes before it doubled."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value
