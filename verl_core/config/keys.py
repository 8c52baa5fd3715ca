"""Reads veRL's keys as rlx's: the rule (drop `actor_rollout_ref.`), and the exceptions in `verl_keys.py`."""

import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from verl_core.config.typed import MISSING, Problem, leaf_types, show, steps, type_at
from verl_core.config.verl_keys import FIXED, RENAMED, RENAMED_VALUES, SUBTREES

PREFIX = "actor_rollout_ref."
SHARED = ("data", "critic", "algorithm", "reward", "trainer")
"""Sections that stand at the same place in veRL and here."""
_BLOCKS = SUBTREES | {key: text for key, (_, text) in FIXED.items()}


@dataclass
class Target:
    path: str | None
    """rlx's key; None when the key asks for what rlx does anyway."""
    value: Any
    note: str | None = None


@dataclass
class TranslatedTree:
    tree: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def is_verl_path(key: str) -> bool:
    """Whether veRL has such a path, so that Hydra's `+key` may stand there."""
    return key.startswith(PREFIX) or key.split(".")[0] in SHARED or _rule(key) is not None


def translate(key: str, value: Any) -> Target | Problem:
    """rlx's key for `key` (the same for a key that is not veRL's, known or not), or why there is none."""
    path = key.removeprefix(PREFIX)
    renamed = next((old for old in RENAMED if _inside(path, old)), None)
    if renamed:
        path = RENAMED[renamed] + path[len(renamed) :]
    if (path in FIXED or not _exists(path)) and (rule := _rule(path)):
        accepted, text = rule
        if any(type(value) is type(item) and value == item for item in accepted):
            return Target(None, value, f"{key} needs no setting here: {text}")
        return Problem(key, value, f"veRL's key has no counterpart here: {text}")
    switch = isinstance(value, bool) and renamed is not None  # true and false only where veRL's key is a switch
    if (isinstance(value, str) or switch) and (path, value) in RENAMED_VALUES:
        ours = RENAMED_VALUES[path, value]
        return Target(path, ours, f"{key}={show(value).strip("'")} is {path}={ours} here")
    return Target(path, value, f"{key} is {path} here" if path != key and (renamed or _exists(path)) else None)


def translate_tree(tree: dict[str, Any]) -> TranslatedTree:
    """The same for a whole YAML tree."""
    result = TranslatedTree({})
    for path, value in _assignments(tree):
        target = translate(path, value)
        if isinstance(target, Problem):
            result.problems.append(target)
            continue
        if target.note:
            result.notes.append(target.note)
        if target.path is not None:
            _assign(result, target.path, target.value)
    return result


def _rule(path: str) -> tuple[tuple, str] | None:
    """(accepted values, text) of a veRL key without a counterpart."""
    if path in FIXED:
        return FIXED[path]
    for block, text in _BLOCKS.items():
        if _inside(path, block):
            switch = path.rpartition(".")[2].startswith(("enable", "use_"))
            return ((None, False) if switch else (None,)), text
    return None


def _inside(path: str, block: str) -> bool:
    return path == block or path.startswith(f"{block}.")


def _exists(path: str) -> bool:
    """Whether the schema has the key, or a place inside one of its free mappings."""
    return type_at(steps(path)) is not MISSING


def _assignments(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) down to the schema's own keys; what the schema does not know is followed to its leaves."""
    for name, item in tree.items():
        path = f"{prefix}{name}"
        own = leaf_types().get(path.removeprefix(PREFIX))
        free = typing.get_origin(own) is dict
        holds_renamed = any(old.startswith(f"{path.removeprefix(PREFIX)}.") for old in RENAMED)
        if isinstance(item, dict) and item and (holds_renamed or not free):
            yield from _assignments(item, f"{path}.")
        else:
            yield path, item


def _assign(result: TranslatedTree, path: str, value: Any) -> None:
    node = result.tree
    *heads, last = path.split(".")
    for head in heads:
        node = node.setdefault(head, {})
        if not isinstance(node, dict):
            result.problems.append(Problem(path, value, f"{head} is a section and a value at once"))
            return
    if last in node and node[last] != value:
        result.problems.append(Problem(path, value, f"given twice: also as {path}={node[last]!r}"))
    node[last] = value
