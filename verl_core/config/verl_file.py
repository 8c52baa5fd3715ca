"""Writes an imported configuration as the `rlx.yaml` a person would keep: sections, values, where they come from."""

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import yaml

from verl_core.config import yaml_text
from verl_core.config.verl_report import Item, Report

_PLAIN = re.compile(r"[\w~/.][\w~/.+-]*")
_LONGEST = 120


def write_file(tree: Mapping[str, Any], comments: Mapping[str, str], report: Report) -> str:
    """The file's text. `comments` say for a dotted key where its value comes from."""
    lines = [
        f"# Imported from {report.script}, line {report.line} ({report.module}), by `rlx config import`.",
        "# A comment behind a value: the key it had in veRL, or that the value is veRL's default.",
    ]
    lines += [f"extends: {scalar(report.extends)}"] if report.extends else []
    for name, item in tree.items():
        lines += ["", *_section(name, item, name, 0, comments)]
    for title, items in (("Not carried over", report.without), ("Not decided by the script", report.undecided)):
        if items:
            lines += ["", f"# {title}:", *(line for item in items for line in _remark(item))]
    return "\n".join(lines) + "\n"


def _section(name: str, value: Any, path: str, indent: int, comments: Mapping[str, str]) -> list[str]:
    margin = "  " * indent
    if isinstance(value, Mapping) and value and path not in comments:
        lines = [f"{margin}{scalar(name)}:"]
        for inner, item in value.items():
            lines += _section(inner, item, f"{path}.{inner}", indent + 1, comments)
        return lines
    comment = f"  # {comments[path]}" if comments.get(path) else ""
    return [f"{margin}{scalar(name)}: {flow(value)}{comment}"]


def flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(name)}: {flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return scalar(value)


def scalar(value: Any) -> str:
    """One scalar, quoted where it would else be read as something else."""
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
    if not isinstance(value, str):
        return yaml_text.write(value).splitlines()[0]
    if _PLAIN.fullmatch(value) and yaml_text.read(value) == value and value.isascii():
        return value
    return yaml.dump(value, Dumper=yaml.SafeDumper, default_style='"', allow_unicode=True, width=float("inf")).strip()


def _remark(item: Item) -> list[str]:
    """A comment on one key, on as many lines as it takes."""
    value = item.value if isinstance(item.value, str) else flow(item.value)
    text = " ".join(f"{item.key}={value}: {item.text}".split())
    text = "".join(char if char.isprintable() else "?" for char in text)
    return textwrap.wrap(text, _LONGEST, initial_indent="#   ", subsequent_indent="#     ", break_on_hyphens=False)
