"""Rows as they will be sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_core.config.errors import UserError
from verl_core.config.reward_parts import TASK, reward_parts
from verl_core.config.schema import RewardConfig
from verl_core.config.scorers import scorer_of
from verl_core.data.example_rows import ExampleRow
from verl_core.data.examples import ExampleDataset
from verl_core.data.inspection.subject import Subject


def view(subject: Subject, positions: Sequence[int]) -> list[dict[str, Any]]:
    """JSON of rows: where each stands, its prompt as text after the template (as messages where no tokenizer is known),
    how many ids that is, the answers that are learned from, and what scores the row. Raises UserError for a row that
    the template refuses."""
    return [_row(subject, position) for position in positions]


def _row(subject: Subject, position: int) -> dict[str, Any]:
    raw = subject.rows[position]
    found: dict[str, Any] = {"file": raw.file, "row": raw.row, "data_source": raw.data_source}
    if subject.tokenizer is None:
        found["messages"] = raw.messages
        if isinstance(raw, ExampleRow):
            found["answers"] = [answer.turns for answer in raw.answers]
    else:
        found |= _sent(subject, position)
    if subject.form == "prompts":
        found |= {"ground_truth": raw.ground_truth, "scorer": _scorer(subject, raw.data_source)}
    return found | {"extra_info": raw.extra_info}


def _sent(subject: Subject, position: int) -> dict[str, Any]:
    decode, data = subject.tokenizer.decode, subject.config.data
    (row,), ((tokens, longest),) = subject.dataset.take([position]), subject.dataset.lengths([position])
    found: dict[str, Any] = {"prompt": decode(row.ids), "tokens": tokens}
    if tokens > data.max_prompt_length:
        fate = "dropped" if data.filter_overlong_prompts else "refused" if data.truncation == "error" else "cut"
        found["overlong"] = f"{fate}, as it is over data.max_prompt_length={data.max_prompt_length}"
    if isinstance(subject.dataset, ExampleDataset):
        answers = subject.dataset.group(row)
        found["answers"] = [decode(t.ids[len(row.ids) :]) for t in answers]
        found["learned"] = [decode([i for i, learned in zip(t.ids, t.mask, strict=True) if learned]) for t in answers]
        found["answer_tokens"] = longest
    return found


def _scorer(subject: Subject, data_source: str) -> str | None:
    """The names of the reward's parts, with that of the rule, or the user's file, for the task; None where nothing
    scores the row."""
    reward = subject.config.reward
    named = (_task(reward, data_source) if name == TASK else name for name in reward_parts(reward))
    return " + ".join(filter(None, named)) or None


def _task(reward: RewardConfig, data_source: str) -> str | None:
    own = reward.custom_reward_function
    if own.path is not None:
        return f"{own.name} of {own.path}"
    try:
        return scorer_of(data_source).name
    except UserError:
        return None
