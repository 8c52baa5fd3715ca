"""Plain values (from YAML) to the schema's dataclasses: the one typed loader of every entry point.

It collects every problem instead of stopping at the first. An int is accepted for a float and one text for a list of
texts; nothing else is converted. (Own code and not pydantic: `rlx` would spend half its start-up importing that, and a
message here needs the full path, where the value came from, and the nearest valid keys.)
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union

from verl_core.config.schema import RlxConfig

MISSING = object()
_WORDS = {type(None): "null", str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class Problem:
    """One thing wrong with one key."""

    path: str
    value: Any
    text: str
    near: tuple[str, ...] = ()
    """Valid keys or values close to what was given."""

    def line(self, origin: str) -> str:
        """The problem on one line, with the value and where it came from."""
        given = self.path if self.value is MISSING else f"{self.path}={show(self.value)}"
        near = f"; did you mean {' or '.join(self.near)}?" if self.near else ""
        return f"{given} ({origin}): {self.text}{near}"


@cache
def fields_of(section: type) -> dict[str, Any]:
    """Field name -> resolved type of a schema dataclass."""
    hints = typing.get_type_hints(section)
    return {field.name: hints[field.name] for field in dataclasses.fields(section)}


@cache
def leaf_types(section: type = RlxConfig, prefix: str = "") -> dict[str, Any]:
    """Dotted path -> type of every key that holds a value, in schema order."""
    found: dict[str, Any] = {}
    for name, tp in fields_of(section).items():
        if dataclasses.is_dataclass(tp):
            found |= leaf_types(typing.cast(type, tp), f"{prefix}{name}.")
        else:
            found[prefix + name] = tp
    return found


def steps(path: str) -> list[str]:
    """`warmup.phases[0].steps` -> ["warmup", "phases", "0", "steps"]; the empty path has none."""
    return path.replace("[", ".").replace("]", "").split(".") if path else []


def type_at(path: Sequence[str]) -> Any:
    """The type a value at this path must have, through sections, free mappings and list positions; MISSING when the
    schema has no such place."""
    tp: Any = RlxConfig
    for step in path:
        if tp is Any:
            return Any
        if dataclasses.is_dataclass(tp):
            tp = fields_of(typing.cast(type, tp)).get(step, MISSING)
        elif typing.get_origin(tp) is dict:
            tp = typing.get_args(tp)[1]
        elif typing.get_origin(tp) is list and step.isdigit():
            tp = typing.get_args(tp)[0]
        else:
            return MISSING
        if tp is MISSING:
            return MISSING
    return tp


def build(tp: Any, value: Any, path: str, problems: list[Problem], partial: bool = False) -> Any:
    """`value` as type `tp`; what does not fit is added to `problems` (the result is then meaningless).

    partial: the value is one layer before interpolation, so `${...}` stands for any type.
    """
    if partial and isinstance(value, str) and "${" in value:
        return value
    if dataclasses.is_dataclass(tp):
        return _build_section(typing.cast(type, tp), value, path, problems, partial)
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin in (Union, types.UnionType):
        return _build_union(tp, args, value, path, problems, partial)
    if origin is Literal:
        if isinstance(value, str) and value in args:
            return value
        near = tuple(difflib.get_close_matches(str(value), args, n=1))
        return _wrong(path, value, f"expected {describe(tp)}", problems, near)
    if origin is dict and isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or not _is_unicode(key):
                _wrong(path, value, f"the key {key!r} is not text: quote it", problems)
        return {key: build(args[1], item, f"{path}.{key}", problems, partial) for key, item in value.items()}
    if origin is list and isinstance(value, str) and args[0] is not Any:
        value = [value]  # a single word is a list of one, as `trainer.logger=console`
    if origin is list and isinstance(value, list):
        return [build(args[0], item, f"{path}[{i}]", problems, partial) for i, item in enumerate(value)]
    if origin is tuple and isinstance(value, list | tuple) and len(value) == len(args):
        return tuple(
            build(arg, item, f"{path}[{i}]", problems, partial)
            for i, (arg, item) in enumerate(zip(args, value, strict=True))
        )
    return _build_scalar(tp, value, path, problems, partial)


def _build_scalar(tp: Any, value: Any, path: str, problems: list[Problem], partial: bool) -> Any:
    if isinstance(value, str) and not _is_unicode(value):
        return _wrong(path, value, "not text in UTF-8", problems)
    if tp is Any:
        if isinstance(value, Mapping):
            return build(dict[str, Any], value, path, problems, partial)
        if isinstance(value, list):
            return build(list[Any], value, path, problems, partial)
        if value is None or isinstance(value, bool | int | float | str):
            return value
    if tp is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            if math.isfinite(number := float(value)):
                return number
        except OverflowError:
            pass
        return _wrong(path, value, "expected a finite number", problems)
    if isinstance(tp, type) and type(value) is tp:
        return value
    hint = " (quote it)" if tp is str and isinstance(value, bool | int | float) else ""
    return _wrong(path, value, f"expected {describe(tp)}{hint}", problems)


def _is_unicode(text: str) -> bool:
    """False for text with bytes of another encoding in it, which Python hands on as lone surrogates."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _build_section(section: type, value: Any, path: str, problems: list[Problem], partial: bool) -> Any:
    if not isinstance(value, Mapping):
        return _wrong(path, value, "expected a section of keys", problems)
    known = fields_of(section)
    given = {}
    for name, item in value.items():
        place = f"{path}.{name}" if path else str(name)
        if name in known:
            given[name] = build(known[name], item, place, problems, partial)
        else:
            problems.append(Problem(place, item, "no such key", near_keys(place)))
    return section(**given)


def _build_union(tp: Any, args: tuple, value: Any, path: str, problems: list[Problem], partial: bool) -> Any:
    if value is None and type(None) in args:
        return None
    options = [arg for arg in args if arg is not type(None)]
    if len(options) == 1:
        return build(options[0], value, path, problems, partial)
    for option in options:
        tried: list[Problem] = []
        built = build(option, value, path, tried, partial)
        if not tried:
            return built
    return _wrong(path, value, f"expected {describe(tp)}", problems)


def _wrong(path: str, value: Any, text: str, problems: list[Problem], near: tuple[str, ...] = ()) -> None:
    problems.append(Problem(path, value, text, near))


def near_keys(path: str) -> tuple[str, ...]:
    """Up to three valid keys close to an unknown one: neighbours first, then the same or nearly the same name
    elsewhere, below the same section first."""
    head, _, last = path.rpartition(".")
    while not dataclasses.is_dataclass(section := type_at(steps(head))):
        if close := difflib.get_close_matches(path, leaf_types(), n=3, cutoff=0.5):
            return tuple(close)
        path = head
        head, _, last = path.rpartition(".")
    neighbours = fields_of(typing.cast(type, section))
    inside = f"{head}." if head else ""
    if close := _closest(last, neighbours):
        return tuple(inside + name for name in close)
    same = {
        leaf: leaf.rpartition(".")[2] for leaf in sorted(leaf_types(), key=lambda leaf: not leaf.startswith(inside))
    }
    elsewhere = difflib.get_close_matches(last, set(same.values()), n=1, cutoff=0.75)
    if found := [leaf for leaf, name in same.items() if name in elsewhere]:
        return tuple(found[:3])
    return tuple(inside + name for name in difflib.get_close_matches(last, neighbours, n=3, cutoff=0.0))


def _closest(name: str, known: Iterable[str]) -> list[str]:
    """Known names that look like a slip of `name`; those about as close as the closest."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    ratio = [difflib.SequenceMatcher(None, name, other).ratio() for other in close]
    return [other for other, r in zip(close, ratio, strict=True) if r > ratio[0] - 0.1]


def describe(tp: Any) -> str:
    """A type in words."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is list:
        return f"a list of {describe(args[0])}"
    if origin is tuple:
        return f"a list of {len(args)} numbers"
    if origin is dict or dataclasses.is_dataclass(tp):
        return "a mapping"
    if origin is Literal:
        return "one of " + ", ".join(args)
    return _WORDS.get(tp, "a value")


def show(value: Any) -> str:
    """A value for a message, on one line and not long."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of everything a tree of mappings holds; an empty mapping is a leaf."""
    if isinstance(value, Mapping) and (value or not path):
        for name, item in value.items():
            yield from leaves(item, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def plain(value: Any) -> Any:
    """A schema object as mappings, lists and scalars, as YAML has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in fields_of(type(value))}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
