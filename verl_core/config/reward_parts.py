"""What `reward.scorers` says: the parts of the reward, their weights and keywords; and what can be wrong with it."""

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_core.config.catalogue import entry, names
from verl_core.config.errors import UserError
from verl_core.config.schema import RewardConfig, RlxConfig

TASK = "task"
"""The rule of the row's data source, or the user's own."""
MODEL_PARTS = {
    "reward_model": "What a trained reward model gives; set up in reward.reward_model.",
    "judge": "What a language model says of the answer, as a number; set up in reward.judge.",
}
"""Parts that a model scores, and what they are."""


@dataclass(frozen=True)
class RewardPart:
    weight: float
    """What its score counts in the reward; 0: it is only logged."""
    keywords: Mapping[str, Any] = field(default_factory=dict)


def reward_parts(reward: RewardConfig) -> dict[str, RewardPart]:
    """The parts by name, in the order given. Raises UserError for one whose weight is no finite number."""
    given = reward.scorers or {TASK: 1.0}
    parts = {name: _part(name, value) for name, value in given.items()}
    if TASK in parts:
        task = parts[TASK]
        parts[TASK] = RewardPart(task.weight, {**reward.reward_kwargs, **task.keywords})
    return parts


def uses_rules(reward: RewardConfig) -> bool:
    """Whether any part is computed by scorer processes."""
    return not reward.scorers or any(name not in MODEL_PARTS for name in reward.scorers)


def reward_part_faults(e: RlxConfig) -> Iterator[str]:
    """Of an effective configuration."""
    try:
        parts = reward_parts(e.reward)
    except UserError as error:
        yield error.message
        return
    if not any(part.weight for part in parts.values()):
        yield "reward.scorers has no part with a weight other than 0: there would be nothing to learn from"
    known = [*names("scorer"), *MODEL_PARTS, TASK]
    for name, part in parts.items():
        key = f"reward.scorers.{name}"
        if name not in known or name.endswith("*"):
            near = difflib.get_close_matches(name, known, n=3)
            yield f"{key}: no such scorer{f'; did you mean {" or ".join(near)}?' if near else ''} (`rlx rewards ls`)"
        elif name in MODEL_PARTS and part.keywords:
            yield f"{key}: its settings are the keys of reward.{name}, not {', '.join(part.keywords)}"
        elif name != TASK and name not in MODEL_PARTS:
            taken = keywords_of(name)
            for keyword in part.keywords:
                if keyword not in taken:
                    yield f"{key}.{keyword}: no such keyword; it takes weight{''.join(f', {k}' for k in taken)}"


def keywords_of(scorer: str) -> list[str]:
    """The keyword arguments of a built-in rule's own."""
    return [key.rpartition(".")[2] for key in entry("scorer", scorer).keys]


def _part(name: str, value: Any) -> RewardPart:
    keywords = dict(value) if isinstance(value, Mapping) else {"weight": value}
    weight = keywords.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise UserError(f"reward.scorers.{name}: its weight is {weight!r}, not a finite number")
    return RewardPart(float(weight), keywords)
