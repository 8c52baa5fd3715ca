"""Which rule scores a row: the built-in one of its data source, or the user's own file."""

import inspect
import pickle
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from verl_core.config import catalogue
from verl_core.config.errors import UserError
from verl_core.config.reward_parts import TASK
from verl_core.config.schema_sandbox import SandboxConfig
from verl_core.config.scorers import scorer_of
from verl_core.config.typed import Problem, build, show
from verl_core.config.user_code import describe, import_file
from verl_core.rewards.verdict import UnusableGold

Scorer = Callable[..., Any]
"""compute_score(data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs) -> number or dict."""


@dataclass(frozen=True)
class Part:
    """A rule by its name, or TASK, with the keyword arguments it is called with."""

    name: str = TASK
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """What scorer processes run: `parts` of each answer in turn. TASK is `pickled` (by cloudpickle) before `path`
    before each data source's own. `cpu_s` and `memory_mb` as in reward.*."""

    parts: tuple[Part, ...] = (Part(),)
    path: str | None = None
    name: str = "compute_score"
    pickled: bytes | None = None
    sys_path: tuple[str, ...] = ()
    cpu_s: float | None = None
    memory_mb: int | None = None
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    """For built-in rules that take `sandbox`."""

    @property
    def own(self) -> bool:
        """Whether TASK is the user's."""
        return self.pickled is not None or self.path is not None


def rule_finder(setup: Setup) -> Callable[[str], list[Scorer]]:
    """data_source -> a callable for each part, which takes veRL's arguments.

    Raises UserError, at once or for a data source, when a rule cannot be loaded or does not take its arguments.
    """
    task = _own_rule(setup) if setup.own else None

    @cache
    def find(data_source: str) -> list[Scorer]:
        return [_rule(part, data_source, task, setup.sandbox) for part in setup.parts]

    return find


def _own_rule(setup: Setup) -> tuple[Scorer, str]:
    """The user's rule, checked, and how messages call it."""
    if setup.pickled is not None:
        try:
            rule = pickle.loads(setup.pickled)
        except Exception as e:
            raise UserError(
                f"the reward function cannot be loaded in its process: {describe(e)}",
                hint="put it into a file and set reward.custom_reward_function.path",
            ) from e
        where = f"the reward {getattr(rule, '__name__', type(rule).__name__)!r}"
    else:
        assert setup.path is not None
        rule, where = load_user_function(setup.path, setup.name), f"{setup.name!r} of {setup.path}"
    for part in setup.parts:
        if part.name == TASK:
            check_signature(rule, part.keywords, where)
    return rule, where


def _rule(part: Part, data_source: str, task: tuple[Scorer, str] | None, sandbox: SandboxConfig) -> Scorer:
    if part.name == TASK and task is not None:
        return partial(task[0], **part.keywords)
    name = data_source if part.name == TASK else part.name
    rule = default_scorer(name)
    check_signature(rule, part.keywords, f"the reward of {name}")
    return partial(rule, **part.keywords, **({"sandbox": sandbox} if _takes_sandbox(rule) else {}))


def _takes_sandbox(rule: Scorer) -> bool:
    try:
        return "sandbox" in inspect.signature(rule).parameters
    except (TypeError, ValueError):  # compiled callables have none
        return False


def warm_up(rule: Scorer) -> None:
    """Calls `warm_up()` of a built-in rule's module, if it has one, with the sandbox where the rule takes it: the place
    for what takes long, which then costs no answer its time. Raises UserError where a library is missing, EnvError
    where there is no sandbox."""
    module = sys.modules.get(getattr(getattr(rule, "func", rule), "__module__", ""))
    if module is not None and module.__name__.startswith("verl_core.") and hasattr(module, "warm_up"):
        module.warm_up(*(value for name, value in getattr(rule, "keywords", {}).items() if name == "sandbox"))


@cache
def default_scorer(data_source: str) -> Scorer:
    """The rule registered for this data source or under this name. Raises UserError naming near ones."""
    return catalogue.implementation("scorer", scorer_of(data_source).name)


def load_user_function(path: str, name: str) -> Scorer:
    """The object `name` of the Python file `path`; the file may import its neighbours.

    Raises UserError when the file is absent, cannot be imported, or has no such callable.
    """
    file = user_file(path)
    function = getattr(import_file(file, "reward file"), name, None)
    if not callable(function):
        what = "no" if function is None else "no callable"
        raise UserError(
            f"{file} has {what} {name!r}", hint="set reward.custom_reward_function.name, or define it there"
        )
    return function


def user_file(path: str) -> Path:
    """Raises UserError when there is no such file."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise UserError(f"no such reward file: {path}", hint="set reward.custom_reward_function.path to a Python file")
    return file


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


def check_values(rule: Scorer, keywords: Mapping[str, Any], where: str) -> None:
    """Raises UserError when a keyword of a built-in rule has a value that the rule does not take: by its annotation,
    and by the rule itself, which looks at its keywords before it looks at an answer."""
    if not keywords:
        return
    types, problems = typing.get_type_hints(rule), list[Problem]()
    for name, value in keywords.items():
        build(types.get(name, Any), value, name, problems)
    said = [f"{problem.path}={show(problem.value)}: {problem.text}" for problem in problems]
    if not said:
        try:
            rule(data_source="", solution_str="", ground_truth="", extra_info={}, **keywords)
        except UnusableGold:
            pass
        except Exception as e:
            said.append(str(e))
    if said:
        raise UserError(f"{where}: {'; '.join(said)}", hint="`rlx rewards show NAME` says what a rule takes")
