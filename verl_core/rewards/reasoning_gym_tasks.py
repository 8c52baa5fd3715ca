"""Tasks of reasoning-gym, for making problems and for scoring answers; the entries of problems as text.

Some of its verifiers call `eval`, `sympy.parse_expr` (which evaluates too) or their like on the answer. A process that
scores replaces these, in all of its modules, by readers of `formula`, before the first task is made.
"""

import difflib
import json
import sys
import warnings
from fractions import Fraction
from functools import cache
from types import ModuleType
from typing import Any

from verl_core.config.errors import EnvError, UserError
from verl_core.rewards.formula import NotFormula, integer, literal, symbolic

EXTRA = "reasoning-gym"
PREFIX = "reasoning_gym/"
_TUPLE, _ITEMS, _FRACTION = "__tuple__", "__items__", "__fraction__"
_ARITHMETIC = "reasoning_gym.arithmetic.bitwise_arithmetic"  # works its own questions out when it scores


def make(task: str, settings: dict[str, Any], **always: Any) -> Any:
    """The data set of a task, a ProceduralDataset, with `settings` of the user's and `always` of ours.

    Raises UserError for an unknown task, for settings that it lacks, and for values that it refuses; EnvError without
    the package.
    """
    classes = _library().factory.DATASETS
    if task not in classes or task == "composite":
        near = difflib.get_close_matches(task, classes, n=3)
        question = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"reasoning-gym has no task {task!r}{question}", hint="rlx prepare --list")
    dataset, config = classes[task]
    known = [name for name in config.__dataclass_fields__ if name not in ("seed", "size")]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            question = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"{task} has no setting {name!r}{question}", hint=f"its own are {', '.join(known)}")
    try:
        made = config(**settings, **always)
        if hasattr(made, "validate"):
            made.validate()
        return dataset(config=made)
    except (AssertionError, TypeError, ValueError) as e:
        raise UserError(f"{task} refuses its settings: {e or type(e).__name__}", hint="change --set") from e


@cache
def verifier(task: str, settings: str) -> Any:
    """The data set whose `score_answer` scores, after `disarm`; settings: JSON. Raises as `make` does."""
    disarm()
    return make(task, json.loads(settings), seed=0, size=1)


def packed(value: Any) -> Any:
    """An entry as JSON has it, so that `unpacked` gives it back: tuples, fractions, keys that are no text are kept."""
    if isinstance(value, Fraction):
        return {_FRACTION: str(value)}
    if isinstance(value, tuple):
        return {_TUPLE: [packed(item) for item in value]}
    if isinstance(value, list):
        return [packed(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and not {_TUPLE, _ITEMS, _FRACTION} & set(value):
            return {key: packed(item) for key, item in value.items()}
        return {_ITEMS: [[packed(key), packed(item)] for key, item in value.items()]}
    return value


def unpacked(value: Any) -> Any:
    """The inverse of `packed`."""
    if isinstance(value, list):
        return [unpacked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _FRACTION in value:
        return Fraction(value[_FRACTION])
    if _TUPLE in value:
        return tuple(unpacked(item) for item in value[_TUPLE])
    if _ITEMS in value:
        return {unpacked(key): unpacked(item) for key, item in value[_ITEMS]}
    return {key: unpacked(item) for key, item in value.items()}


class _Sympy:
    """sympy, but for what evaluates a text."""

    parse_expr = sympify = S = staticmethod(symbolic)

    def __getattr__(self, name: str) -> Any:
        import sympy

        return getattr(sympy, name)


@cache
def disarm() -> None:
    """Imports the library; its code can evaluate no text in this process from then on, nor can it make problems."""
    import sympy

    _library()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "reasoning_gym":
            continue
        held = vars(module)
        held["eval"] = integer if name == _ARITHMETIC else literal
        held["exec"] = _refuse
        for attribute, value in list(held.items()):
            if value is sympy:
                held[attribute] = _Sympy()
            elif value is sympy.parse_expr or value is sympy.sympify:
                held[attribute] = symbolic


def _refuse(*arguments: Any) -> Any:
    raise NotFormula("text is not run")


def _library() -> ModuleType:
    try:
        with warnings.catch_warnings():  # what it imports compares texts by `is`
            warnings.simplefilter("ignore", SyntaxWarning)
            import reasoning_gym.factory
    except ImportError as e:
        raise EnvError(
            f"reasoning-gym cannot be imported: {e}",
            f"`rlx prepare {EXTRA}:TASK` and runs on its files bring it along; in an environment of your own: "
            "pip install reasoning-gym==0.1.25",
        ) from e
    return reasoning_gym
