"""What goes into a scorer and what comes out: one request, one verdict, whatever the rule returned or did."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST_TEXT = 1000  # characters of `pred` and `reason` that a verdict keeps
TIMEOUT = "timeout:"  # how Verdict.error begins where the rule ran out of time,
CPU = "cpu:"  # of processor time,
MEMORY = "memory:"  # of memory


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One answer to score. `solution` is the answer's text without special tokens; `prompt` the messages it answers,
    which models that score read and rules do not."""

    data_source: str
    solution: str
    ground_truth: Any
    extra_info: dict[str, Any] = field(default_factory=dict)
    prompt: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reward` is what is trained on; `acc` is the task's own accuracy, None where the rule gives none; `pred` is what
    was taken for the answer and `reason` a short phrase why it got its reward; `parts` are the other numbers the rule
    returned. With `error` set the rule failed on this answer and the reward is 0."""

    reward: float
    parts: dict[str, float] = field(default_factory=dict)
    acc: float | None = None
    pred: str | None = None
    reason: str | None = None
    error: str | None = None
    failures: dict[str, str | None] = field(default_factory=dict)
    """Of a reward of several parts: why each of them failed, None where it did not."""


class UnusableGold(ValueError):
    """The row's ground truth cannot be compared with anything: the row is at fault, not the answer."""

    def __init__(self, ground_truth: Any):
        super().__init__(f"ground truth {ground_truth!r} cannot be compared with an answer")


class WrongReturn(TypeError):
    """The rule returned something that is not a reward."""


def failed(reason: str) -> Verdict:
    return Verdict(reward=0.0, error=reason)


def fields_of(verdict: Verdict) -> tuple[Any, ...]:
    """The arguments that make it again: a tuple crosses to another process in a third of the time."""
    return verdict.reward, verdict.parts, verdict.acc, verdict.pred, verdict.reason, verdict.error


def verdict_of(result: Any) -> Verdict:
    """The verdict in what a rule returned: a number, or a dict with `score` and optionally `acc`, `pred`, `reason` and
    further numbers (other extras are dropped). Numbers may be int, float, bool or numpy scalars.

    Raises WrongReturn, naming the value, for anything else and for numbers that are not finite.
    """
    if not isinstance(result, Mapping):
        return Verdict(reward=_number("the reward", result))
    if "score" not in result:
        raise WrongReturn(f"the returned dict has no 'score'; its keys are {sorted(map(str, result))}")
    acc = result.get("acc")
    extras = {str(k): _scalar(v) for k, v in result.items() if k not in ("score", "acc", "pred", "reason")}
    return Verdict(
        reward=_number("score", result["score"]),
        parts={k: _number(k, v) for k, v in extras.items() if isinstance(v, numbers.Real)},
        acc=None if acc is None else _number("acc", acc),
        pred=_text(result.get("pred")),
        reason=_text(result.get("reason")),
    )


def _text(value: Any) -> str | None:
    """An answer may be a megabyte of digits; what is kept of it with every sample is not."""
    text = None if value is None else str(value)
    return text if text is None or len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."


def _number(name: str, value: Any) -> float:
    value = _scalar(value)
    if not isinstance(value, numbers.Real):
        raise WrongReturn(f"{name} is {value!r:.60} of type {type(value).__name__}, not a number")
    if not math.isfinite(value):
        raise WrongReturn(f"{name} is {value}, not a finite number")
    return float(value)


def _scalar(value: Any) -> Any:
    """numpy scalars and 0-d arrays or tensors as Python numbers, without importing their libraries."""
    return value.item() if getattr(value, "shape", None) == () else value
