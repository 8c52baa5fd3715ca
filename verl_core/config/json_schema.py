"""The configuration as a JSON Schema, made from the dataclasses, so that editors complete and check `rlx.yaml`.

It refuses what the loader and the ranges refuse of single values, as far as a schema can tell: JSON has one kind of
number, so `2.0` passes for 2. veRL's paths, which the loader reads as well, are left out: no editor shall offer them.
"""

import dataclasses
import typing
from typing import Any, Literal

from verl_core.config.catalogue import KINDS, names
from verl_core.config.describe import docstrings
from verl_core.config.ranges import bounds
from verl_core.config.schema import FACTS, RlxConfig
from verl_core.config.typed import fields_of, plain

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Node = dict[str, Any]
_INTERPOLATION: Node = {"type": "string", "pattern": r"\$\{"}


def json_schema() -> Node:
    """The schema of a file: `extends`, and every key with its meaning, default, choices and range."""
    root = _section(RlxConfig, plain(RlxConfig()), "")
    about = "Profile that this file builds on: a name, or a path to one."
    extends = {"type": ["string", "null"], "minLength": 1, "description": about}
    return {
        "$schema": DIALECT,
        "title": "rlx configuration",
        **root,
        "properties": {"extends": extends, **root["properties"]},
    }


def _section(section: type, defaults: Any, prefix: str, nested: bool = False) -> Node:
    """A dataclass. `nested`: it is an item of a list or a free mapping, where null does not stand for no keys."""
    texts = docstrings(section)
    properties = {}
    for name, tp in fields_of(section).items():
        key = f"{prefix}{name}"
        about = {"description": texts[name]} if name in texts else {}
        if dataclasses.is_dataclass(tp):
            inner = _section(typing.cast(type, tp), defaults[name], f"{key}.", nested)
            empty = [] if nested else [{"type": "null"}]
            properties[name] = {**about, "anyOf": [inner, _INTERPOLATION, *empty]}
        else:
            properties[name] = {**about, "default": defaults[name], **_value(tp, key)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value(tp: Any, key: str) -> Node:
    """What a key takes: its type, or an interpolation in its place."""
    options = _options(tp, key)
    return {"anyOf": options if any(node.get("type") == "string" for node in options) else [*options, _INTERPOLATION]}


def _options(tp: Any, key: str) -> list[Node]:
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if tp is Any:
        return [{}]
    if origin is Literal or (key in KINDS and tp is str):
        return [{"enum": list(args or names(KINDS[key]))}]
    if origin is list:
        item = _value(args[0], f"{key}[0]")
        words = [node for node in item["anyOf"] if _takes_text(node)]  # one word stands for a list of one
        return [{"type": "array", "items": item}, *(words if args[0] is not Any else ())]
    if origin is tuple:
        items = [_value(arg, f"{key}[{i}]") for i, arg in enumerate(args)]
        return [{"type": "array", "prefixItems": items, "minItems": len(args), "maxItems": len(args)}]
    if origin is dict:
        inner = typing.cast(type, args[1])
        if dataclasses.is_dataclass(inner):
            item = {"anyOf": [_section(inner, plain(inner()), f"{key}.NAME.", nested=True), _INTERPOLATION]}
        else:
            item = _value(inner, "")
        return [{"type": "object", "additionalProperties": item}]
    if dataclasses.is_dataclass(tp):
        return [_section(typing.cast(type, tp), plain(typing.cast(type, tp)()), f"{key}.", nested=True)]
    if args:
        return [node for arg in args for node in _options(arg, key)]
    return _scalar(tp, key)


def _scalar(tp: Any, key: str) -> list[Node]:
    if tp is type(None):
        return [{"type": "null"}]
    if tp is bool:
        return [{"type": "boolean"}]
    if tp is str:
        return [{"type": "string"} if key in FACTS or not key else {"type": "string", "minLength": 1}]
    number: Node = {"type": "integer" if tp is int else "number"}
    if (found := bounds(key)) is None:
        return [number]
    interval, special = found
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    if low != -float("inf"):
        number["minimum" if interval[0] == "[" else "exclusiveMinimum"] = _short(low)
    if high != float("inf"):
        number["maximum" if interval[-1] == "]" else "exclusiveMaximum"] = _short(high)
    return [number, *([{"enum": list(special)}] if special else [])]


def _takes_text(node: Node) -> bool:
    return node.get("type") == "string" or any(isinstance(choice, str) for choice in node.get("enum", ()))


def _short(number: float) -> float:
    return int(number) if number.is_integer() else number
