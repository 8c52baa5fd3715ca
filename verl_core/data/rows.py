"""From a record of a data file to a checked row with veRL's columns: what may be absent is filled in, what is broken is
said with file, row and field."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from verl_core.config.errors import UserError

SHOWN = 10  # broken rows named in one error
MEDIA = ("images", "videos", "audios")  # veRL's columns of what is no text


@dataclass(frozen=True, slots=True)
class RawRow:
    """One prompt before it is tokenised. `row` counts from 1 within `file`."""

    messages: list[dict[str, Any]]
    data_source: str
    ground_truth: Any
    extra_info: dict[str, Any]
    file: str
    row: int


class BrokenRow(ValueError):
    """Says which field of a record is wrong, and how."""


def parse_row(record: Any, file: str, row: int, prompt_key: str, reward_fn_key: str) -> RawRow:
    """Checks one record. Raises BrokenRow."""
    record = as_object(record)
    return RawRow(
        messages=messages_in(record, prompt_key),
        data_source=_data_source(record, reward_fn_key),
        ground_truth=_ground_truth(record),
        extra_info=extra_info(record),
        file=file,
        row=row,
    )


def refuse_media(record: Any, file: str, row: int) -> None:
    """UserError for a row with pictures, films or sound: the model would be asked about what it is not shown."""
    for column in MEDIA:
        if isinstance(record, dict) and record.get(column):
            raise UserError(
                f"{file} row {row} has {column}, and this release trains on text alone",
                hint=f"choose another data set, or drop the column {column} where the prompts make sense without it",
            )


def raise_for(problems: Iterable[tuple[str, int, str]], what: str, hint: str) -> None:
    """One UserError for all (file, row, problem) entries, the first ten named; nothing when there are none."""
    every = list(problems)
    if every:
        named = "; ".join(f"{file} row {row}: {problem}" for file, row, problem in every[:SHOWN])
        more = f"; and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
        raise UserError(f"{len(every)} {what}: {named}{more}", hint=hint)


def as_object(record: Any) -> dict[str, Any]:
    """The record, if it is one. Raises BrokenRow."""
    if isinstance(record, ValueError):
        raise BrokenRow(str(record))
    if not isinstance(record, dict):
        raise BrokenRow(f"the row is a {type(record).__name__}, not an object")
    return record


def messages_in(record: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The chat messages of a field; a text is what the user said. One that only calls tools may be without content.
    Raises BrokenRow."""
    prompt = present(record, key)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        broken(record, key, f"is {short(prompt)}, not a list of messages or a string")
    for i, message in enumerate(prompt):
        if not isinstance(message, dict):
            broken(record, f"{key}[{i}]", f"is {short(message)}, not a {{role, content}} message")
        for part in ("role", "content"):
            silent = part == "content" and message.get(part) is None and message.get("tool_calls")
            if not silent and not isinstance(message.get(part), str):
                broken(record, f"{key}[{i}].{part}", f"is {short(message.get(part))}, not a string")
    # Parquet gives every message the keys of all messages; the absent ones are null there.
    return [_without_nulls(message) for message in prompt]


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    return {"content": "", **{k: v for k, v in message.items() if v is not None}, "role": sys.intern(message["role"])}


def _data_source(record: dict[str, Any], key: str) -> str:
    value = present(record, key)
    if not isinstance(value, str):
        broken(record, key, f"is {short(value)}, not a string")
    return sys.intern(value)


def _ground_truth(record: dict[str, Any]) -> Any:
    reward_model = present(record, "reward_model")
    if not isinstance(reward_model, dict):
        broken(record, "reward_model", f"is {short(reward_model)}, not an object with ground_truth")
    gold = reward_model.get("ground_truth")
    if gold is None:
        how = f"{absent(reward_model, 'ground_truth')} (reward_model has {sorted(reward_model)})"
        broken(record, "reward_model.ground_truth", how)
    if gold != gold:  # what tables of numbers have in place of null
        broken(record, "reward_model.ground_truth", "is nan")
    return gold


def extra_info(record: dict[str, Any]) -> dict[str, Any]:
    value = record.get("extra_info")
    if value is not None and not isinstance(value, dict):
        broken(record, "extra_info", f"is {short(value)}, not an object")
    return value or {}


def number_at(record: Any, key: str) -> float:
    """The number of a field; a dot leads into an object. Raises BrokenRow."""
    holder, last = holder_of(as_object(record), key)
    value = holder.get(last)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        broken(record, key, absent(holder, last) if value is None else f"is {short(value)}, not a number")
    try:
        return float(value)
    except OverflowError:
        broken(record, key, f"is {short(value)}, too large a number")


def holder_of(record: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The object that a dotted key leads to, empty where there is none, and the last name of the key."""
    *heads, last = key.split(".")
    holder: Any = record
    for name in heads:
        holder = holder.get(name) if isinstance(holder, dict) else None
    return (holder if isinstance(holder, dict) else {}), last


def present(record: dict[str, Any], key: str) -> Any:
    if record.get(key) is None:
        broken(record, key, absent(record, key))
    return record[key]


def absent(record: dict[str, Any], key: str) -> str:
    """How a field that has no value comes to have none."""
    return "is null" if key in record else "is missing"


def broken(record: dict[str, Any], field: str, how: str) -> NoReturn:
    raise BrokenRow(f"{field} {how}; keys present: {', '.join(map(str, record)) or 'none'}")


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
