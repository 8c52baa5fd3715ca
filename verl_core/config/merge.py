"""Lays trees of plain values over each other, and resolves `${...}`.

The merge is a few lines of its own because it needs no library; OmegaConf, a quarter of a second to import, is loaded
only for a configuration that has an interpolation in it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_core.config.typed import MISSING, Problem, leaves, plain


def overlay(base: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Lays `layer` over `base`, in place: mappings are merged, everything else (lists too) is replaced."""
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            overlay(base[key], value)
        else:
            base[key] = plain(value)  # a copy: one YAML anchor may stand behind several values


def assign(tree: dict[str, Any], steps: Sequence[str], value: Any) -> None:
    """Lays one value over the place at `steps`; list positions are numbers. Raises IndexError with a reason."""
    node: Any = tree
    for i, step in enumerate(steps):
        if isinstance(node, list):
            if int(step) >= len(node):
                raise IndexError(f"the list has {len(node)} items, counted from 0")
            last: Any = int(step)
        else:
            last = step
        if i == len(steps) - 1:
            break
        if isinstance(node, dict) and not isinstance(node.get(last), dict | list):
            node[last] = {}
        node = node[last]
    if isinstance(value, Mapping) and (isinstance(node, list) or last in node) and isinstance(node[last], dict):
        overlay(node[last], value)
    else:
        node[last] = plain(value)


def interpolate(tree: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The tree with every `${key}` and `${oc.env:NAME}` replaced, and what cannot be."""
    if not any("${" in str(value) for _, value in leaves(tree)):
        return tree, []
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    problems: list[Problem] = []

    def resolved(value: Any, parent: Any, key: Any, place: str) -> Any:
        """`value`, which OmegaConf has at `parent[key]`; only what holds an interpolation is asked for there."""
        if isinstance(value, dict):
            return {name: resolved(item, parent[key], name, f"{place}.{name}") for name, item in value.items()}
        if isinstance(value, list):
            return [resolved(item, parent[key], i, f"{place}[{i}]") for i, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        try:
            found = parent[key]
            return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
        except (OmegaConfBaseException, RecursionError) as error:
            problems.append(Problem(place, MISSING, _first_line(error)))
            return value

    try:
        config = OmegaConf.create(tree)
        return {name: resolved(value, config, name, str(name)) for name, value in tree.items()}, problems
    except OmegaConfBaseException as error:  # `${` that is not an interpolation at all
        return tree, [Problem(getattr(error, "full_key", None) or "${", MISSING, _first_line(error))]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
