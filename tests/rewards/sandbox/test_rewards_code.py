"""Programs are scored by their tests: right ones of every kind, wrong ones with the reason why."""

import asyncio
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from honest_programs import CALLS, PRINTED, TESTS

from verl_core.config.schema import RewardConfig
from verl_core.config.schema_sandbox import SandboxConfig
from verl_core.rewards.code import compute_score, program_of
from verl_core.rewards.pool import ScoreRequest, ScorerPool
from verl_core.rewards.verdict import UnusableGold

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap (bwrap) is not installed")
CONFIG = SandboxConfig(type="bubblewrap", timeout_s=8.0)
score = partial(compute_score, "code", sandbox=CONFIG)


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("x = 1", "x = 1"),
        ("text\n```python\nx = 1\n```\nmore", "x = 1"),
        ("```python\nx = 1\n```\n```python\nx = 2\n```", "x = 2"),
        ("```python\nx = 1\n```\nIt prints\n```\n1\n```", "x = 1"),
        ("```\nx = 1\n```\n```\nx = 2\n```", "x = 2"),
        ("```py\nx = 1\n```", "x = 1"),
        ("  ```Python\nx = 1\n  ```", "x = 1"),
        ("```python title\nx = 1", "x = 1"),
        ("```python\nx = 1\n```bash\n", "x = 1\n```bash"),
        ("<think>```python\nx = 1\n```</think>```python\nx = 2\n```", "x = 2"),
        ("```python\ns = '''\n  a ``` b\n'''\n```", "s = '''\n  a ``` b\n'''"),
        ("```python\n```", ""),
        ("", ""),
    ],
)
def test_the_program_is_the_last_block(answer: str, program: str) -> None:
    assert program_of(answer) == program


@pytest.mark.parametrize("filling", ["a", " ", "\t", "`", "```", "```a\n", "<think>"])
def test_a_fence_that_is_none_takes_no_time(filling: str) -> None:
    began = time.process_time()
    program_of(f"```{filling * 40_000}`")
    assert time.process_time() - began < 2


HONEST = [
    *((program, {"tests": tests}) for program, tests in CALLS),
    *((p, {"tests": tests, "setup": setup, "entry_point": name}) for p, setup, tests, name in TESTS),
    *((program, {"inputs": [given], "outputs": [wanted]}) for program, given, wanted in PRINTED),
]


@needs_bwrap
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_right_programs_pass(every: int) -> None:
    golds = HONEST[::every]
    with ThreadPoolExecutor(2) as threads:
        verdicts = list(threads.map(lambda case: score(f"```python\n{case[0]}\n```", json.dumps(case[1])), golds))
    wrong = [(p, v["reason"], v["passed"]) for (p, _), v in zip(golds, verdicts, strict=True) if v["reason"] != "right"]
    assert wrong == []
    assert len(golds) >= 60 or every > 1


@needs_bwrap
@pytest.mark.parametrize(
    ("program", "gold", "passed", "reason"),
    [
        ("def f(n): return n", {"tests": ["assert f(1) == 1", "assert f(2) == 4"]}, 0.5, "wrong result"),
        ("def f(n): return 1", {"tests": ["assert f(1) is True"]}, 0.0, "wrong result"),
        ("def g(n): return n", {"tests": ["assert f(1) == 1"]}, 0.0, "wrong result"),
        ("def f(n) return n", {"tests": ["assert f(1) == 1"]}, 0.0, "the program fails"),
        ("1 / 0\ndef f(n): return n", {"tests": ["assert f(1) == 1"]}, 0.0, "the program fails"),
        ("1 / 0\ndef f(n): return n", {"tests": ["assert f(1) + 1 == 2"]}, 0.0, "the program fails"),
        (
            "def f(n):\n    while n > 1: pass\n    return n",
            {"tests": ["assert f(1) == 1", "assert f(2) == 2"]},
            0.5,
            "time limit",
        ),
        ("def f(n): return open(3 if n else 9, 'w')", {"tests": ["assert f(0) + 1 == 2"]}, 0.0, "wrong result"),
        ("print(input())", {"inputs": ["1", "2"], "outputs": ["1", "3"]}, 0.5, "wrong result"),
        ("print(1); raise SystemExit(1)", {"inputs": [""], "outputs": ["1"]}, 0.0, "the program fails"),
        ("x = [0] * 10 ** 10", {"inputs": [""], "outputs": ["1"]}, 0.0, "memory limit"),
        ("while True: print('x' * 9999)", {"inputs": [""], "outputs": ["1"]}, 0.0, "output limit"),
        (
            "class Solution:\n    def f(self, a, b): return (a, [b])",
            {"fn_name": "f", "inputs": ["1\n2", [3, 4]], "outputs": ["[1, [2]]", [3, [4]]]},
            1.0,
            "right",
        ),
        ("def f(a): return a", {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [3]]}, 0.5, "wrong result"),
        (
            "def f(xs: List[int]): return xs",
            {"preamble": "from typing import List", "tests": ["assert f([1]) == [1]"]},
            1.0,
            "right",
        ),
    ],
)
def test_a_verdict_has_the_share_and_the_reason(program: str, gold: dict, passed: float, reason: str) -> None:
    seconds = 1.0 if reason == "time limit" else 8.0
    config = SandboxConfig(type="bubblewrap", run_timeout_s=seconds, timeout_s=8.0)
    verdict = compute_score("code", program, gold, partial=True, sandbox=config)
    assert verdict == {
        "score": passed,
        "acc": float(passed == 1.0),
        "passed": passed,
        "pred": program,
        "reason": reason,
    }


@needs_bwrap
def test_the_limit_of_an_answer_holds_over_its_runs() -> None:
    gold = {"inputs": [""] * 50, "outputs": ["1"] * 50}
    config = SandboxConfig(type="bubblewrap", run_timeout_s=0.4, timeout_s=1.0)
    verdict = compute_score("code", "while True: pass", gold, partial=True, sandbox=config)
    assert (verdict["passed"], verdict["reason"]) == (0.0, "time limit")


def test_no_program_is_a_wrong_answer() -> None:
    verdict = score("```python\n```", {"tests": ["assert f(1) == 1"]})
    assert (verdict["score"], verdict["pred"], verdict["reason"]) == (0.0, "", "no program found")


@pytest.mark.parametrize(
    "gold",
    [
        None,
        "",
        "None",
        "[1]",
        "{",
        {},
        {"tests": []},
        {"tests": [1]},
        {"tests": "assert f(1)"},
        {"tests": 3},
        {"inputs": "1", "outputs": "1"},
        {"inputs": ["1"], "outputs": []},
        {"inputs": [1], "outputs": ["1"]},
        {"tests": ["assert f(1)"], "inputs": ["1"], "outputs": ["1"]},
        {"tests": ["assert f(1)"], "setup": 3},
    ],
)
def test_a_ground_truth_in_neither_form_is_the_rows_fault(gold: object) -> None:
    with pytest.raises(UnusableGold):
        score("x = 1", gold)


@needs_bwrap
def test_inputs_that_are_no_json_are_the_rows_fault() -> None:
    with pytest.raises(UnusableGold):
        score("def f(n): return n", {"fn_name": "f", "inputs": ["{"], "outputs": ["1"]})


@needs_bwrap
def test_the_scorer_pool_runs_programs() -> None:
    gold = json.dumps({"tests": ["assert f(2) == 4"]})
    answers = ["def f(n): return n * n", "def f(n): return n", "while True: pass"]
    cfg = RewardConfig(num_workers=2, timeout_s=4.0, sandbox=SandboxConfig(run_timeout_s=0.5))
    with ScorerPool(cfg) as pool:
        pool.check(["mbpp"])
        verdicts = asyncio.run(pool.score([ScoreRequest("mbpp", answer, gold) for answer in answers]))
    assert [v.reward for v in verdicts] == [1.0, 0.0, 0.0]
    assert [v.reason for v in verdicts] == ["right", "wrong result", "time limit"]
    assert [v.error for v in verdicts] == [None, None, None]
