"""One record of a user's file to a row with veRL's columns, by `CustomOptions`."""

import json
import re
from typing import Any

from verl_core.config.custom_data import EXTRA, CustomOptions
from verl_core.config.schema import DataConfig
from verl_core.data.example_rows import comparison, demonstration
from verl_core.data.prepare.prepared import Row
from verl_core.data.rows import BrokenRow, absent, broken, holder_of, messages_in, parse_row, short

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
_KEPT = ("data_source", "messages", "chosen", "rejected", "margin", "completion", "label", "tools")
_FALSE = ("false", "0", "no")
_TRUE = ("true", "1", "yes")


def row_of(record: dict[str, Any], options: CustomOptions) -> Row:
    """The row, without its number and split. Raises BrokenRow for a column that is absent or null, with those that are
    there, and for what the loader would refuse, with the columns that it came from."""
    fields = _fields(record, options)
    try:
        return _row(fields, options.form())
    except BrokenRow as e:
        columns = ", ".join(f"{field}={column}" for field, column in options.map.items())
        raise BrokenRow(f"{e} (from --map {columns})") from e


def _fields(record: dict[str, Any], options: CustomOptions) -> dict[str, Any]:
    fields: dict[str, Any] = {name: _column(record, column) for name, column in options.map.items()} | options.constant
    if options.template:
        fields["prompt"] = _filled(options.template, record)
    if "margin" in fields:
        fields["margin"] = _number(record, fields["margin"])
    if "label" in fields:
        fields["label"] = _truth(record, fields["label"])
    return fields


def _row(fields: dict[str, Any], form: str) -> Row:
    """Raises BrokenRow for what the loader refuses."""
    row: Row = {"extra_info": {name.removeprefix(EXTRA): v for name, v in fields.items() if name.startswith(EXTRA)}}
    row |= {name: fields[name] for name in _KEPT if name in fields}
    if isinstance(fields.get("tools"), list):
        row["tools"] = json.dumps(fields["tools"])  # schemas differ from one another: no column has their type
    if "prompt" in fields:
        row["prompt"] = _prompt(fields)
    if form == "prompts to answer":
        row["ability"] = fields.get("ability", "custom")
        row["reward_model"] = {"style": "rule", "ground_truth": _gold(fields["ground_truth"])}
        row["extra_info"] |= {"answer": fields["answer"]} if "answer" in fields else {}
        parse_row(row, "", 0, "prompt", "data_source")
    elif form in ("pairs", "labelled answers"):
        comparison(row, "", 0, DataConfig())
    else:
        if "answer" in fields:
            row["messages"] = [*row.pop("prompt"), {"role": "assistant", "content": fields["answer"]}]
        demonstration(row, "", 0, DataConfig())
    return row


def _column(record: dict[str, Any], column: str) -> Any:
    """A column by its name, else by the path that its dots make."""
    holder, last = (record, column) if column in record else holder_of(record, column)
    value = holder.get(last)
    if value is None:
        broken(record, column, absent(holder, last))
    if isinstance(value, bytes) or (isinstance(value, dict) and isinstance(value.get("bytes"), bytes)):
        broken(record, column, "holds an image or other bytes, which are not read")
    return value


def _filled(template: str, record: dict[str, Any]) -> str:
    """`{COLUMN}` is the column's text, `{{` and `}}` are braces."""

    def part(place: re.Match[str]) -> str:
        return str(_column(record, place[1].strip())) if place[1] else place[0][0]

    return _PLACE.sub(part, template)


def _prompt(fields: dict[str, Any]) -> list[dict[str, Any]]:
    messages = messages_in(fields, "prompt")
    return [{"role": "system", "content": fields["system"]}, *messages] if "system" in fields else messages


def _gold(value: Any) -> Any:
    """Numbers as text: a column of Parquet has one type. NaN is none, and stays for the loader to refuse."""
    return str(value) if isinstance(value, int | float) and value == value else value


def _number(record: dict[str, Any], value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        broken(record, "margin", f"is {short(value)}, not a number")


def _truth(record: dict[str, Any], value: Any) -> bool:
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    word = str(value).strip().casefold()
    if word not in (*_TRUE, *_FALSE):
        broken(record, "label", f"is {short(value)}, not true or false")
    return word in _TRUE
