"""From a record of a data file to a checked row that has its answers: demonstrations, pairs, labelled answers.

In the forms that data sets on the hub have, so that they load as they are. What is broken is said with its field.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_core.config.schema import DataConfig
from verl_core.data.rows import RawRow, absent, broken, extra_info, holder_of, messages_in, number_at, present, short

CHOSEN, REJECTED = 0, 1
"""`Trajectory.sample` of the answers of a pair, and of a labelled answer that is wanted, or is not."""
_SPEAKER = re.compile(r"\n\n(Human|Assistant): ?")  # the transcripts of Anthropic's hh-rlhf
_ROLES = {"Human": "user", "Assistant": "assistant"}

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What follows the prompt: an assistant's turn, and in a conversation of several the turns after it."""

    sample: int
    turns: list[Message]


@dataclass(frozen=True, slots=True)
class ExampleRow(RawRow):
    """`messages` are the prompt. `margin`: by how much more the chosen answer's reward is to be larger. `tools`: what
    the chat template is told that the assistant may call."""

    answers: tuple[Answer, ...]
    margin: float = 0.0
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def says_nothing(self) -> bool:
        """Whether it is a pair of equal answers."""
        return len(self.answers) > 1 and self.answers[0].turns == self.answers[1].turns


def demonstration(record: dict[str, Any], file: str, row: int, cfg: DataConfig) -> ExampleRow:
    """A conversation in data.messages_key; or data.prompt_key and the answer in data.response_key, where a dot leads
    into an object. Raises BrokenRow."""
    if record.get(cfg.messages_key) is not None:
        if isinstance(record[cfg.messages_key], str):
            broken(record, cfg.messages_key, f"is {short(record[cfg.messages_key])}, not a list of messages")
        turns = messages_in(record, cfg.messages_key)
        prompt, answer = _parted(turns, record, cfg.messages_key)
    else:
        if record.get(cfg.prompt_key) is None:
            either = f"{cfg.messages_key} (or {cfg.prompt_key} and {cfg.response_key})"
            broken(record, either, absent(record, cfg.messages_key))
        prompt, answer = messages_in(record, cfg.prompt_key), [_assistant(_text(record, cfg.response_key))]
    return _row(record, file, row, cfg, prompt, (Answer(CHOSEN, answer),))


def pair(record: dict[str, Any], file: str, row: int, cfg: DataConfig) -> ExampleRow:
    """`chosen` and `rejected`, each a text or messages, with the prompt in data.prompt_key, or within both. `margin` is
    read where it is there. Raises BrokenRow."""
    prompt = messages_in(record, cfg.prompt_key) if record.get(cfg.prompt_key) is not None else []
    whole = [_conversation(record, key, prompt) for key in ("chosen", "rejected")]
    if not prompt:
        shared = _shared(*whole)
        if not shared or any(turns[shared]["role"] != "assistant" for turns in whole):
            broken(record, "chosen", f"and rejected answer no common prompt, and there is no {cfg.prompt_key}")
        prompt = whole[0][:shared]
    answers = tuple(
        Answer(sample, _answer(turns, record, key, prompt))
        for key, sample, turns in zip(("chosen", "rejected"), (CHOSEN, REJECTED), whole, strict=True)
    )
    margin = 0.0 if record.get("margin") is None else number_at(record, "margin")
    if math.isinf(margin):
        broken(record, "margin", f"is {margin}, and no answer is that much better")
    return _row(record, file, row, cfg, prompt, answers, margin)


def labelled(record: dict[str, Any], file: str, row: int, cfg: DataConfig) -> ExampleRow:
    """One answer in `completion`, text or messages, and whether it is wanted in `label`. Raises BrokenRow."""
    prompt = messages_in(record, cfg.prompt_key)
    label = present(record, "label")
    if not isinstance(label, bool) and label not in (0, 1):
        broken(record, "label", f"is {short(label)}, not true or false")
    answer = _answer(_conversation(record, "completion", prompt), record, "completion", prompt)
    return _row(record, file, row, cfg, prompt, (Answer(CHOSEN if label else REJECTED, answer),))


def comparison(record: dict[str, Any], file: str, row: int, cfg: DataConfig) -> ExampleRow:
    """A pair, or a labelled answer where there is a `label`. Raises BrokenRow."""
    return (labelled if record.get("label") is not None else pair)(record, file, row, cfg)


def _row(
    record: dict[str, Any],
    file: str,
    row: int,
    cfg: DataConfig,
    prompt: list[Message],
    answers: tuple[Answer, ...],
    margin: float = 0.0,
) -> ExampleRow:
    source = record.get(cfg.reward_fn_key)
    if source is not None and not isinstance(source, str):
        broken(record, cfg.reward_fn_key, f"is {short(source)}, not a string")
    told = extra_info(record), file, row, answers, margin, _tools(record)
    return ExampleRow(prompt, source or Path(file).stem, None, *told)


def _tools(record: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Function schemas in `tools`, as objects or as the JSON of them; Parquet's nulls are absent fields."""
    value = record.get("tools")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            broken(record, "tools", f"is not JSON: {error}")
    if not isinstance(value or [], list) or not all(isinstance(tool, dict) for tool in value or []):
        broken(record, "tools", f"is {short(value)}, not a list of function schemas")
    return tuple(map(_without_nulls, value or []))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _parted(turns: list[Message], record: dict[str, Any], key: str) -> tuple[list[Message], list[Message]]:
    """The messages before the assistant's first turn, and those from there to its last."""
    said = [i for i, message in enumerate(turns) if message["role"] == "assistant"]
    if not said:
        roles = ", ".join(dict.fromkeys(message["role"] for message in turns))
        broken(record, key, f"has no message of the role assistant, only of {roles}: there is nothing to learn")
    if said[0] == 0:
        broken(record, f"{key}[0].role", "is assistant: nothing is before it that it answers")
    return turns[: said[0]], turns[said[0] : said[-1] + 1]


def _conversation(record: dict[str, Any], key: str, prompt: list[Message]) -> list[Message]:
    """Prompt and answer, whichever of them the field holds."""
    value = present(record, key)
    if not isinstance(value, str):
        turns = messages_in(record, key)
        return [*prompt, *turns] if turns[0]["role"] == "assistant" else turns
    if not prompt and (turns := _transcript(value)):
        return turns
    return [*prompt, _assistant(value)]


def _answer(turns: list[Message], record: dict[str, Any], key: str, prompt: list[Message]) -> list[Message]:
    """What follows the prompt in a conversation; white space around what was said does not tell prompts apart."""
    same = all(
        (a["role"], a["content"].strip()) == (b["role"], b["content"].strip())
        for a, b in zip(prompt, turns, strict=False)
    )
    rest = turns[len(prompt) :]
    if not same or not rest or rest[0]["role"] != "assistant":
        broken(record, key, f"does not answer the prompt: {short(turns)}")
    return rest


def _transcript(text: str) -> list[Message]:
    """The turns of a text that begins with a blank line and `Human:`; none for any other."""
    start, *parts = _SPEAKER.split(text)
    if start or not parts or parts[0] != "Human":
        return []
    return [{"role": _ROLES[who], "content": said} for who, said in zip(parts[::2], parts[1::2], strict=True)]


def _shared(one: list[Message], other: list[Message]) -> int:
    """Messages that both begin with, so that each goes on with an assistant's turn."""
    most = min(len(one), len(other)) - 1
    count = next((i for i in range(most) if one[i] != other[i]), most)
    while count and one[count]["role"] != "assistant":
        count -= 1
    return count


def _text(record: dict[str, Any], key: str) -> str:
    holder, last = holder_of(record, key)
    value = holder.get(last)
    if not isinstance(value, str):
        broken(record, key, absent(holder, last) if value is None else f"is {short(value)}, not a string")
    return value


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}
