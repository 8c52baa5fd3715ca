"""Judges a program by asserts, of which no line, and no expected value, ever is where the program is.

A test `assert f(1, [2]) == 3` is taken apart here: the call goes to the program's sandbox, what it returns comes back
as plain data and is compared here. All other tests run in a second sandbox, where the program's names stand for calls
to the first (`inside/asker.py`).
"""

import ast
import builtins
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verl_core.rewards.sandbox.inside import speaker
from verl_core.rewards.sandbox.inside.plain import TooMuch, decode, encode
from verl_core.rewards.sandbox.local import LocalSandbox
from verl_core.rewards.sandbox.protocol import Limits, Outcome, Sandbox


@dataclass(frozen=True)
class Judged:
    """`passed`: one boolean a test; `outcome`: how the run ended that they come from; `broken`: the name of the
    exception that the program raised before any test could ask for something."""

    passed: list[bool]
    outcome: Outcome
    broken: str | None = None


@dataclass(frozen=True)
class Call:
    """A test of one call with literal arguments, and the literal it must return; `exact`: of the same type, too."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    expected: Any
    exact: bool = False

    def request(self) -> list[Any]:
        return ["run", *(encode(part, _no_objects) for part in (self.name, self.args, self.kwargs))]

    def returns(self, answer: Any) -> bool:
        """Whether `answer`, a line of the program's process, says what is expected. Read with suspicion: at most as
        many elements as expected, so that nothing costs more than the test itself."""
        try:
            value = decode(answer["value"], _no_objects, _elements(encode(self.expected, _no_objects)))
            return self.same(value)
        except (TooMuch, ValueError, TypeError, LookupError, RecursionError, OverflowError):
            return False

    def same(self, value: Any) -> bool:
        return bool(value == self.expected) and (not self.exact or type(value) is type(self.expected))


def judge_calls(sandbox: Sandbox, program: str, calls: Sequence[Call], limits: Limits) -> Judged:
    """Runs the program and the calls in one sandbox, one after another, and compares what they return here."""
    requests = [{"program": program}, *(call.request() for call in calls)]
    stdin = "".join(json.dumps(request) + "\n" for request in requests).encode()
    outcome = sandbox.run(speaker("answerer"), stdin, limits)
    answers = [_loaded(line) for line in outcome.stdout.split(b"\n")[: len(requests)]]
    answers += [{}] * (len(requests) - len(answers))
    broken = answers[0].get("error")
    name = str(broken[0])[:40] if isinstance(broken, list) and broken else None
    passed = [call.returns(answer) for call, answer in zip(calls, answers[1:], strict=True)]
    return Judged([ok and name is None for ok in passed], outcome, name)


def judge_tests(
    sandbox: LocalSandbox, program: str, tests: Sequence[str], setup: str, entry_point: str, limits: Limits
) -> Judged:
    """Runs the tests in one sandbox and the program in another."""
    task = {
        "program": program,
        "tests": list(tests),
        "setup": setup,
        "entry_point": entry_point,
        "names": program_names([setup, *tests], entry_point),
    }
    outcome = sandbox.converse(speaker("answerer"), speaker("asker"), json.dumps(task).encode(), limits)
    # written by an interpreter that never ran a line of the program, and whole
    report = _loaded(outcome.stdout) if outcome.status == "ok" else {}
    return Judged(report.get("passed", [False] * len(tests)), outcome, report.get("program"))


def call_of(test: str) -> Call | None:
    """The call in `assert NAME(literals) == literal` (or `is True`, `is False`, `is None`); None for any other test."""
    match _parsed(test):
        case ast.Module(
            body=[
                ast.Assert(
                    test=ast.Compare(
                        left=ast.Call(func=ast.Name(id=name), args=args, keywords=keywords),
                        ops=[ast.Eq() | ast.Is() as comparison],
                        comparators=[right],
                    )
                )
            ]
        ):
            try:
                expected = ast.literal_eval(right)
                exact = isinstance(comparison, ast.Is)
                if exact and not isinstance(expected, bool | None):
                    return None
                values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in keywords}
                if None in values:  # **keywords
                    return None
                arguments = tuple(ast.literal_eval(arg) for arg in args)
                call = Call(name, arguments, values, expected, exact)  # type: ignore[arg-type]
                encode([call.request(), expected], _no_objects)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                return None
            return call
    return None


def only_imports(setup: str) -> bool:
    """Whether the statements define nothing but imported modules."""
    tree = _parsed(setup)
    return tree is not None and all(isinstance(part, ast.Import | ast.ImportFrom) for part in tree.body)


def program_names(texts: Sequence[str], entry_point: str = "") -> list[str]:
    """Names that tests use and nobody but the program can define, besides `candidate`, which is its entry point.

    A built-in function is the tests' own. Only where they would ask nothing of the program otherwise (its function is
    called `sum`, and no entry point is given) the program's is meant, if it has one.
    """
    used: set[str] = set()
    own: set[str] = {"candidate"} if entry_point else set()
    for text in texts:
        for node in ast.walk(_parsed(text) or ast.Module([], [])):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    used.add(name)
                case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                    own.add(name)
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    own.add(name)
                case ast.alias(name=name, asname=alias):
                    own.add(alias or name.partition(".")[0])
    free = used - own
    foreign = {name for name in free if not hasattr(builtins, name)}
    if not foreign and not entry_point:
        return sorted(name for name in free if not isinstance(getattr(builtins, name), type))
    return sorted(foreign)


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _loaded(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _elements(data: Any) -> int:
    """How many elements `decode` counts in what `encode` wrote."""
    if not isinstance(data, list):
        return 1
    if data[0] == "dict":
        return 1 + sum(_elements(part) for pair in data[1:] for part in pair)
    return 1 + sum(map(_elements, data[1:])) if data[0] in ("list", "tuple", "set", "frozenset") else 1


def _no_objects(value: Any) -> Any:
    raise ValueError("not plain data")
