"""The options that one data set alone takes, from the words of the command line to its dataclass.

A field `max_numbers: int` is `--max-numbers 4`, a `bool` is `--strict` or `--no-strict`, a `dict` takes
`--map prompt=question,ground_truth=answer` and may stand several times, with texts or values as YAML has them.
"""

import dataclasses
import difflib
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_core.config import catalogue, yaml_text
from verl_core.config.datasets import DatasetFacts
from verl_core.config.errors import UserError
from verl_core.config.generated_data import GeneratedOptions
from verl_core.config.typed import Problem, build, describe, fields_of

COMMON = ("--source", "--out", "--limit", "--validate", "--json", "--dry-run", "--verbose")


def find(name: str) -> tuple[catalogue.Entry, str]:
    """The entry of `NAME` or of `NAME:TASK`, and the task or "". Raises UserError for an unknown name, for a task of a
    data set that has none, and for a family without its task."""
    family, colon, task = name.partition(":")
    entry = catalogue.entry("dataset", family)
    tasks = facts(entry).tasks
    if bool(tasks) != bool(task) or (colon and not task):
        raise UserError(f"{name} is no data set", f"write `rlx prepare {_spelled(family, tasks)}")
    if task and task not in tasks:
        near = difflib.get_close_matches(task, tasks, n=3)
        question = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"{family} has no task {task!r}{question}", f"its tasks are {', '.join(tasks)}")
    return entry, task


def _spelled(family: str, tasks: Sequence[str]) -> str:
    return f"{family}:TASK` with one of {', '.join(tasks)}" if tasks else f"{family}`"


def facts(entry: catalogue.Entry) -> DatasetFacts:
    """What the catalogue knows of a data set; of a plug-in's that says nothing, nothing."""
    return entry.options if isinstance(entry.options, DatasetFacts) else DatasetFacts({}, "unknown")


def folder(name: str, options: Any) -> str:
    """Where a data set goes below ~/data: its name, for a task of a family in the family's folder; options whose rows
    do not mix with others' have a `folder` of their own below it."""
    own = getattr(options, "folder", "")
    return "/".join(filter(None, (*name.split(":"), own)))


def maker(file: str) -> str | None:
    """The NAME or NAME:TASK with which `rlx prepare` makes a file in its default place; None for a file elsewhere."""
    parts = Path(file).parts
    for name in catalogue.names("dataset"):
        if name in parts:
            task = next((task for task in facts(catalogue.entry("dataset", name)).tasks if task in parts), None)
            return f"{name}:{task}" if task else name
    return None


def rows(name: str, options: Any) -> dict[str, int]:
    """Rows by split: as published, or as many as the options ask for where it is made up."""
    if isinstance(options, GeneratedOptions):
        return {"train": options.count, "test": options.test_count}
    return dict(facts(find(name)[0]).rows)


def read(name: str, words: Sequence[str]) -> Any:
    """The data set's own options from `--name value` words, or None where it has none. Raises UserError for an option
    that it lacks, with those that it has, and for a value that does not fit; the dataclass may have a `check()` of its
    own, which raises it too."""
    options = facts(find(name)[0]).options
    given = asked(name, words)
    problems: list[Problem] = []
    built = build(options, given, "", problems) if options else None
    if problems:
        said = (f"{_flag(p.path)} {p.value!r}: {p.text}" for p in problems)
        raise UserError("; ".join(said), "`rlx prepare --list` shows the options of every data set")
    if check := getattr(built, "check", None):
        check()
    return built


def asked(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The fields that the words set, before their values are checked. Raises UserError for an option that the data set
    lacks, or that has no value."""
    options = facts(find(name)[0]).options
    known = fields_of(options) if options else {}
    given: dict[str, Any] = {}
    rest = list(words)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        field, negated = _field(name, flag, known)
        if known[field] is bool and not equals:
            given[field] = not negated
            continue
        if not equals:
            if not rest:
                raise UserError(f"{flag} needs a value", f"{flag} {describe(known[field])}")
            value = rest.pop(0)
        if typing.get_origin(known[field]) is dict:
            given[field] = given.get(field, {}) | _mapping(flag, value, typing.get_args(known[field])[1])
        else:
            given[field] = value if _is_text(known[field]) else _scalar(flag, value)
    return given


def described(options: type) -> dict[str, str]:
    """`--name` -> what it takes and its default, for the table of data sets."""
    defaults = {f.name: f.default for f in dataclasses.fields(options)}
    return {
        _flag(name): describe(tp) + ("" if defaults[name] in (None, dataclasses.MISSING) else f" ({defaults[name]})")
        for name, tp in fields_of(options).items()
    }


def _field(name: str, flag: str, known: dict[str, Any]) -> tuple[str, bool]:
    """The field that a flag sets, and whether it is the `--no-` form."""
    positive = "--" + flag.removeprefix("--no-") if flag.startswith("--no-") else flag
    for spelled, negated in ((flag, False), (positive, True)):
        for field, tp in known.items():
            if spelled == _flag(field) and (not negated or tp is bool):
                return field, negated
    own = [_flag(field) for field in known]
    close = difflib.get_close_matches(flag, [*own, *COMMON], n=1)
    if not re.fullmatch(r"-{1,2}\w[\w-]*", flag):
        raise UserError(f"unexpected word {flag!r}", "one data set at a time: `rlx prepare NAME --option value`")
    near = f"; did you mean {close[0]}?" if close else ""
    raise UserError(f"{name} has no option {flag}{near}", f"its own are {', '.join(own) or 'none'}")


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def _is_text(tp: Any) -> bool:
    return tp is str or typing.get_origin(tp) is typing.Literal or str in typing.get_args(tp)


def _scalar(flag: str, value: str) -> Any:
    try:
        return yaml_text.read(value)
    except ValueError as error:
        raise UserError(f"{flag} {value!r} is no value: {error}", "quote it as YAML has it") from error


def _mapping(flag: str, text: str, tp: Any) -> dict[str, Any]:
    """`a=b,c=d`: a comma parts where the next KEY= follows, so that a value may hold others."""
    found = {}
    for part in re.split(r",(?=[\w.-]+=)", text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{flag} {part!r} is not KEY=VALUE", f"{flag} key=value,other=value")
        found[key.strip()] = value if _is_text(tp) else _scalar(flag, value)
    return found
