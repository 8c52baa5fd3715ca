"""Judges what a program prints, or what its function returns, for given inputs. Expected outputs stay here."""

import json
import math
from collections.abc import Sequence
from typing import Any

from verl_core.rewards.sandbox.asserts import Call

TOLERANCE = 1e-6  # relative, and absolute below 1: what judges of programming contests allow for decimals


def same_output(printed: str, expected: str) -> bool:
    """Whether the same words were printed, however they are spaced. Where a decimal number is expected, one that is
    within TOLERANCE counts."""
    got, wanted = printed.split(), expected.split()
    return len(got) == len(wanted) and all(map(_same_word, got, wanted))


def _same_word(got: str, wanted: str) -> bool:
    if got == wanted:
        return True
    if "." not in wanted or len(got) > 400:
        return False
    try:
        return math.isclose(float(got), float(wanted), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except ValueError:
        return False


class Returned(Call):
    """A call whose expected value is JSON, so that a tuple is as good as a list."""

    def same(self, value: Any) -> bool:
        wanted, value = _listed(self.expected), _listed(value)
        return bool(value == wanted or (isinstance(wanted, list) and len(wanted) == 1 and value == wanted[0]))


def calls_of(fn_name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Call]:
    """A call a case. Raises ValueError for an input or output that is no JSON."""
    return [
        Returned(fn_name, tuple(_arguments(given)), {}, json.loads(wanted) if isinstance(wanted, str) else wanted)
        for given, wanted in zip(inputs, outputs, strict=True)
    ]


def _arguments(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [json.loads(line) for line in given.splitlines() if line.strip()]
    return list(given)


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value
