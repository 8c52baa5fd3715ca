"""Which rule scores a row: the built-in one of its data source, or the user's own file."""

import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from verl_core.config import catalogue
from verl_core.config.errors import UserError
from verl_core.config.scorers import scorer_of
from verl_core.config.user_code import describe, import_file

Scorer = Callable[..., Any]
"""compute_score(data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs) -> number or dict."""


@dataclass(frozen=True)
class Setup:
    """Which rule a scorer process runs: `pickled` (by cloudpickle) before `path` before each data source's own."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    path: str | None = None
    name: str = "compute_score"
    pickled: bytes | None = None
    sys_path: tuple[str, ...] = ()


def rule_finder(setup: Setup) -> Callable[[str], Scorer]:
    """data_source -> rule. Raises UserError when the rule cannot be loaded or does not take the arguments."""
    if setup.pickled is not None:
        try:
            rule = pickle.loads(setup.pickled)
        except Exception as e:
            raise UserError(
                f"the reward function cannot be loaded in its process: {describe(e)}",
                hint="put it into a file and set reward.custom_reward_function.path",
            ) from e
        where = f"the reward {getattr(rule, '__name__', type(rule).__name__)!r}"
    elif setup.path is not None:
        rule, where = load_user_function(setup.path, setup.name), f"{setup.name!r} of {setup.path}"
    else:
        return default_scorer
    check_signature(rule, setup.kwargs, where)
    return lambda data_source: rule


@cache
def default_scorer(data_source: str) -> Scorer:
    """The rule registered for this data source or under this name. Raises UserError naming near ones."""
    return catalogue.implementation("scorer", scorer_of(data_source).name)


def load_user_function(path: str, name: str) -> Scorer:
    """The object `name` of the Python file `path`; the file may import its neighbours.

    Raises UserError when the file is absent, cannot be imported, or has no such callable.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise UserError(f"no such reward file: {path}", hint="set reward.custom_reward_function.path to a Python file")
    function = getattr(import_file(file, "reward file"), name, None)
    if not callable(function):
        what = "no" if function is None else "no callable"
        raise UserError(
            f"{file} has {what} {name!r}", hint="set reward.custom_reward_function.name, or define it there"
        )
    return function


def check_signature(scorer: Scorer, kwargs: Mapping[str, Any], where: str) -> None:
    """Raises UserError when the rule cannot be called with veRL's arguments and `kwargs` (reward.reward_kwargs)."""
    try:
        signature = inspect.signature(scorer)
    except (TypeError, ValueError):  # compiled callables have none
        return
    try:
        signature.bind(data_source="", solution_str="", ground_truth="", extra_info={}, **kwargs)
    except TypeError as e:
        raise UserError(
            f"{where} takes {signature}, which does not fit: {e}",
            hint="it is called with data_source, solution_str, ground_truth, extra_info and reward.reward_kwargs",
        ) from e
