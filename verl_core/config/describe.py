"""What the schema says about its keys: type, default, range, choices and meaning, read from the schema itself."""

import ast
import dataclasses
import inspect
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from verl_core.config.catalogue import KINDS, names
from verl_core.config.ranges import range_of
from verl_core.config.schema import RlxConfig
from verl_core.config.typed import MISSING, describe, fields_of, plain, steps, type_at

NAME, POSITION = "NAME", "[N]"
"""Stand in a key for the name of an entry in a free mapping, and for a position in a list."""


@dataclass(frozen=True)
class Field:
    """One place of the configuration that holds a value, or a section of such places."""

    key: str
    """Dotted; `cluster.pools.NAME.gpus` and `warmup.phases[N].steps` stand for any name and position."""
    type: Any
    default: Any
    """A plain value; MISSING for a section."""
    meaning: str
    """The schema's words, with unit and range."""

    @property
    def section(self) -> bool:
        return dataclasses.is_dataclass(self.type)

    @property
    def choices(self) -> tuple[str, ...]:
        """Names the value must be one of; empty when there is no such list."""
        return _literals(self.type) or (tuple(names(KINDS[self.key])) if self.key in KINDS else ())

    @property
    def range(self) -> str | None:
        """The interval a number must be in, e.g. `[1, 1e9] or -1`."""
        return range_of(self.key)

    @property
    def words(self) -> str:
        """Type, choices and range for people."""
        if self.section:
            return "a section"
        text = describe(self.type)
        if self.key in KINDS:
            text = text.replace("text", "one of " + ", ".join(self.choices))
        return f"{text} in {self.range}" if self.range else text


@cache
def fields() -> dict[str, Field]:
    """Every place by its key, sections included, in the schema's order."""
    return {field.key: field for field in _below(RlxConfig, plain(RlxConfig()), "")}


def field_at(key: str) -> Field | None:
    """The place that a concrete key names (`warmup.phases[0].steps`); None for one that the schema does not have.

    An item of a free mapping, of a list or of a pair is described by the key it lies in.
    """
    if key in fields():
        return fields()[key]
    path = steps(key)
    if not path or type_at(path) is MISSING:
        return None
    tp: Any = RlxConfig
    place = ""
    for step in path:
        origin, args = typing.get_origin(tp), typing.get_args(tp)
        if dataclasses.is_dataclass(tp):
            place, tp = f"{place}.{step}".lstrip("."), fields_of(typing.cast(type, tp))[step]
        elif origin in (dict, list) and dataclasses.is_dataclass(args[-1]):
            place, tp = place + (f".{NAME}" if origin is dict else POSITION), args[-1]
        else:
            break
    return fields().get(place.removesuffix(f".{NAME}").removesuffix(POSITION))


def _below(section: type, defaults: Any, prefix: str) -> Iterator[Field]:
    """The fields of a section, each before what lies in it."""
    texts = docstrings(section)
    for name, tp in fields_of(section).items():
        yield from _place(f"{prefix}{name}", tp, defaults[name], texts.get(name, ""))


def _place(key: str, tp: Any, default: Any, meaning: str) -> Iterator[Field]:
    if dataclasses.is_dataclass(tp):
        yield Field(key, tp, MISSING, meaning)
        yield from _below(typing.cast(type, tp), default, f"{key}.")
        return
    yield Field(key, tp, default, meaning)
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin in (dict, list) and dataclasses.is_dataclass(args[-1]):
        item = typing.cast(type, args[-1])
        yield from _below(item, plain(item()), f"{key}.{NAME}." if origin is dict else f"{key}{POSITION}.")


@cache
def docstrings(section: type) -> dict[str, str]:
    """Field -> the text under it, on one line. Python keeps no such text, so the source is read."""
    found = {}
    statements = _classes(section.__module__)[section.__name__].body
    for field, text in pairwise(statements):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    source = inspect.getsource(sys.modules[module])
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def _literals(tp: Any) -> tuple[str, ...]:
    if typing.get_origin(tp) is typing.Literal:
        return typing.get_args(tp)
    return tuple(name for arg in typing.get_args(tp) for name in _literals(arg))
