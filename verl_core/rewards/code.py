"""Scores programs by tests: MBPP (arXiv 2108.07732), HumanEval (2107.03374), APPS (2105.09938) and their like.

The ground truth of a row is a mapping, or its JSON text, in one of two forms.

By asserts, what MBPP and HumanEval have:

* `tests`: a list of texts, each a test that passes when it runs without raising, such as `"assert f(2) == 4"`. A text
  may hold several statements (HumanEval's `def check(candidate): ...` with `check(candidate)` behind it).
* `setup` (optional): statements that run before the tests and belong to them: imports, and helpers such as the ones
  that HumanEval's prompts define. A name that `setup` defines is the tests' own, whatever the program defines.
* `entry_point` (optional): the name of the program's function that the tests call `candidate`.
* `preamble` (optional): statements that are put before the program, such as the imports of HumanEval's prompt.

By input and output, as veRL's rows of APPS, TACO, CodeContests and Codeforces have it:

* `inputs`, `outputs`: lists of the same length. Without `fn_name` they are texts: stdin, and what stdout must be.
* `fn_name` (optional): the function, or the method of `class Solution`, that is called instead. Then an input is a list
  of arguments, or their JSON texts one a line, and an output what must be returned.
* `preamble` (optional), as above.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from verl_core.config.errors import EnvError
from verl_core.config.schema_sandbox import SandboxConfig
from verl_core.rewards.final_answer import after_thinking
from verl_core.rewards.sandbox.asserts import Judged, call_of, judge_calls, judge_tests, only_imports
from verl_core.rewards.sandbox.cases import calls_of, same_output
from verl_core.rewards.sandbox.choose import limits_of, sandbox_of
from verl_core.rewards.sandbox.local import LocalSandbox
from verl_core.rewards.sandbox.protocol import Limits, Outcome, Sandbox
from verl_core.rewards.verdict import UnusableGold

_FENCE = re.compile(r"^[ \t]*+```[ \t]*+(\w*+)[^\n`]*+$", re.MULTILINE)  # possessive, so that it is linear
_LIMITS = {"timeout": "time limit", "memory": "memory limit", "output": "output limit", "threads": "thread limit"}


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    partial: bool = False,
    sandbox: SandboxConfig | None = None,
) -> dict[str, Any]:
    """score: 1 when the program passes every test, else 0; `partial`: the share of tests that it passes. acc: 1 when it
    passes all; passed: the share; pred: the program; reason.

    The program is the last fenced block of the answer, one that is called Python before others, else the whole text.
    `sandbox`: where it runs (reward.sandbox).
    Raises UnusableGold for a ground truth that is in neither form, and EnvError or RunError where there is no sandbox.
    """
    gold = _Gold.read(ground_truth)
    config = sandbox or SandboxConfig(timeout_s=8.0)
    program = program_of(solution_str)
    if not program.strip():
        return _verdict([False] * gold.n_tests, program, "no program found", partial)
    assert config.timeout_s is not None  # the pool fills it in
    run = _Run(sandbox_of(config), limits_of(config), time.monotonic() + config.timeout_s, partial)
    passed, reason = run.judge(gold, f"{gold.preamble}\n{program}" if gold.preamble else program)
    return _verdict(passed, program, "right" if all(passed) else reason, partial)


def warm_up(sandbox: SandboxConfig) -> None:
    """Finds the sandbox and runs a program in it. Raises EnvError where that is not possible."""
    sandbox_of(sandbox)


def program_of(answer: str) -> str:
    """The program in an answer's text, without what was thought before it. An unclosed block goes to the end."""
    text = after_thinking(answer)
    blocks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence[1]:
            blocks.append((opened[1].lower(), text[opened.end() : fence.start()]))
            opened = None
    if opened is not None:
        blocks.append((opened[1].lower(), text[opened.end() :]))
    python = [block for label, block in blocks if label in ("python", "py", "python3")]
    return (python or [block for _, block in blocks] or [text])[-1].strip("\n")


@dataclass(frozen=True)
class _Gold:
    """A ground truth in either form; what belongs to the other is empty."""

    preamble: str = ""
    setup: str = ""
    entry_point: str = ""
    tests: tuple[str, ...] = ()
    fn_name: str = ""
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()

    @classmethod
    def read(cls, ground_truth: Any) -> "_Gold":
        """Raises UnusableGold."""
        try:
            fields = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
        except ValueError:
            fields = None
        if not isinstance(fields, Mapping):
            raise UnusableGold(ground_truth)
        texts: dict[str, Any] = {
            name: fields.get(name) or "" for name in ("preamble", "setup", "entry_point", "fn_name")
        }
        try:
            lists: dict[str, Any] = {name: _tuple(fields.get(name)) for name in ("tests", "inputs", "outputs")}
        except TypeError:
            raise UnusableGold(ground_truth) from None
        gold = cls(**texts, **lists)
        printed = () if gold.fn_name else gold.inputs + gold.outputs
        if (
            bool(gold.tests) == bool(gold.inputs)
            or len(gold.inputs) != len(gold.outputs)
            or not all(isinstance(text, str) for text in (*texts.values(), *gold.tests, *printed))
        ):
            raise UnusableGold(ground_truth)
        return gold

    @property
    def n_tests(self) -> int:
        return len(self.tests or self.inputs)


def _tuple(values: Any) -> tuple[Any, ...]:
    """A column of Parquet is an array, or null. Raises TypeError for what is no list."""
    if isinstance(values, str | Mapping):
        raise TypeError
    return () if values is None else tuple(values)


@dataclass(frozen=True)
class _Run:
    """The tests of one answer: `deadline` (time.monotonic()) holds for all of them, `limits` for each run of the
    program; `to_the_end`: go on after a test that failed."""

    sandbox: Sandbox
    limits: Limits
    deadline: float
    to_the_end: bool

    def judge(self, gold: _Gold, program: str) -> tuple[list[bool], str]:
        """One boolean a test, and why a program that does not pass all of them is wrong."""
        if gold.tests:
            return _reasoned(self._by_asserts(gold, program))
        if gold.fn_name:
            try:
                calls = calls_of(gold.fn_name, gold.inputs, gold.outputs)
            except (ValueError, TypeError):
                raise UnusableGold({"inputs": gold.inputs, "outputs": gold.outputs}) from None
            return _reasoned(judge_calls(self.sandbox, program, calls, self._left()))
        return self._by_output(gold, program)

    def _by_asserts(self, gold: _Gold, program: str) -> Judged:
        calls = [call_of(test) for test in gold.tests] if only_imports(gold.setup) else [None]
        if None not in calls:
            return judge_calls(self.sandbox, program, calls, self._left())  # type: ignore[arg-type]
        if not isinstance(self.sandbox, LocalSandbox):
            raise EnvError(
                "tests that are more than a call and what it returns need a sandbox of this machine",
                hint="reward.sandbox.type=bubblewrap",
            )
        return judge_tests(self.sandbox, program, gold.tests, gold.setup, gold.entry_point, self._left())

    def _by_output(self, gold: _Gold, program: str) -> tuple[list[bool], str]:
        def case(given: str, wanted: str) -> tuple[bool, str]:
            if time.monotonic() >= self.deadline:
                return False, "time limit"
            outcome = self.sandbox.run(program, given.encode("utf-8", "surrogatepass"), self._left())
            right = outcome.status == "ok" and same_output(outcome.stdout.decode(errors="replace"), wanted)
            return right, "right" if right else _why(outcome)

        results = []
        for result in _mapped(case, gold.inputs, gold.outputs, self.sandbox.parallel):
            results.append(result)
            if not result[0] and not self.to_the_end:
                break
        passed = [right for right, _ in results]
        reasons = [reason for right, reason in results if not right]
        return passed + [False] * (gold.n_tests - len(passed)), reasons[0] if reasons else "right"

    def _left(self) -> Limits:
        return replace(self.limits, seconds=max(0.1, min(self.limits.seconds, self.deadline - time.monotonic())))


def _mapped(
    case: Callable[[str, str], tuple[bool, str]], inputs: tuple[str, ...], outputs: tuple[str, ...], parallel: int
) -> Iterator[tuple[bool, str]]:
    if parallel == 1:
        yield from map(case, inputs, outputs)
        return
    threads = ThreadPoolExecutor(min(parallel, len(inputs)))
    try:
        yield from threads.map(case, inputs, outputs)
    finally:
        threads.shutdown(cancel_futures=True)


def _reasoned(judged: Judged) -> tuple[list[bool], str]:
    if judged.broken is not None:
        return judged.passed, "the program fails"
    return judged.passed, _why(judged.outcome)


def _why(outcome: Outcome) -> str:
    return _LIMITS.get(outcome.status) or ("the program fails" if outcome.status == "failed" else "wrong result")


def _verdict(passed: list[bool], program: str, reason: str, partial: bool) -> dict[str, Any]:
    share = sum(passed) / len(passed)
    right = float(all(passed))
    return {"score": share if partial else right, "acc": right, "passed": share, "pred": program, "reason": reason}
