"""No program gets out, holds anybody up, or leaves anything behind."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from errno import EPERM
from pathlib import Path

import pytest
from hostile_loads import LOADS
from hostile_programs import ESCAPES, MARK, Hostile

from verl_core.config.errors import RunError
from verl_core.config.schema import RewardConfig
from verl_core.config.schema_sandbox import SandboxConfig
from verl_core.rewards.pool import ScoreRequest, ScorerPool
from verl_core.rewards.sandbox.asserts import judge_tests
from verl_core.rewards.sandbox.bubblewrap import Bubblewrap
from verl_core.rewards.sandbox.local import LocalSandbox
from verl_core.rewards.sandbox.protocol import Limits, Outcome
from verl_core.rewards.sandbox.rlimits import Rlimits
from verl_core.rewards.sandbox.seccomp import MACHINES
from verl_core.rewards.sandbox.syscalls import DENIED

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap (bwrap) is not installed")

ALL = ESCAPES + LOADS
QUICK = {
    "fork",
    "signal to everybody",
    "tcp",
    "passwords",
    "this project",
    "environment of init",
    "each denied call",
    "environment",
}
QUICK |= {"prints for ever", "memory, at once", "threads of little memory", "mode of a device"}
MEMORY_MB = 300 + os.getpid() % 200  # stands on every command line, so that what is left over can be told from others'
SECRET = "canary-in-the-coal-mine"


def _limits(hostile: Hostile) -> Limits:
    return Limits(seconds=1.0 if hostile.status == "timeout" else 20.0, memory_mb=MEMORY_MB, output_kb=512, tmp_mb=4)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future]]:
    """The outcomes of the programs that this session tests, four running at a time."""
    canary = tmp_path_factory.mktemp("canary") / "secret.txt"
    canary.write_text(SECRET)
    column = MACHINES[os.uname().machine][0]
    denied = [(name, numbers[column], EPERM) for name, numbers in DENIED.items() if numbers[column] is not None]
    told = {"project": str(Path(__file__).parents[3]), "canary": str(canary), "denied": denied}
    wanted = {item.callspec.params.get("hostile") for item in request.session.items if hasattr(item, "callspec")}
    sandbox = Bubblewrap()
    os.environ["HOSTILE_SECRET"] = SECRET

    def run(hostile: Hostile) -> Outcome:
        program = hostile.program
        for name, value in told.items():
            program = program.replace(f"{{{name}!r}}", repr(value))
        return sandbox.run(program, hostile.stdin, _limits(hostile))

    with ThreadPoolExecutor(4) as threads:
        yield {hostile.name: threads.submit(run, hostile) for hostile in ALL if hostile in wanted}
    del os.environ["HOSTILE_SECRET"]
    assert not processes_with(str(MEMORY_MB << 20))
    places = (Path("/"), Path("/tmp"), Path("/dev"), Path("/dev/shm"), Path("/etc"), Path("/usr/lib"), Path.cwd())
    assert not [place for place in places if (place / MARK).exists()]


def _check(hostile: Hostile, outcome: Outcome) -> None:
    printed = outcome.stdout.decode(errors="replace")
    assert outcome.status == hostile.status, (printed[:200], outcome.stderr[-500:])
    assert "ESCAPED" not in printed and SECRET not in printed + outcome.stderr
    if hostile.stdout is not None:
        assert printed.rstrip("\n") == hostile.stdout
    assert hostile.says in outcome.stderr
    assert len(outcome.stdout) + len(outcome.stderr) <= 600 * 1024
    assert outcome.seconds < _limits(hostile).seconds + 3


@pytest.mark.parametrize("hostile", [h for h in ALL if h.name in QUICK], ids=lambda h: h.name)
def test_hostile_program_gets_nowhere(hostile: Hostile, outcomes: dict[str, Future]) -> None:
    _check(hostile, outcomes[hostile.name].result())


@pytest.mark.slow
@pytest.mark.parametrize("hostile", [h for h in ALL if h.name not in QUICK], ids=lambda h: h.name)
def test_every_hostile_program_gets_nowhere(hostile: Hostile, outcomes: dict[str, Future]) -> None:
    if hostile.name == "32-bit calls" and os.uname().machine != "x86_64":
        pytest.skip("32-bit calls are a thing of x86_64")
    _check(hostile, outcomes[hostile.name].result())


RUNS_FOR_A_MINUTE = """
import sys
from verl_core.rewards.sandbox.{module} import {name}
from verl_core.rewards.sandbox.protocol import Limits
{name}().run("while True: pass", b"", Limits(seconds=60, memory_mb=int(sys.argv[1])))
"""


@pytest.mark.parametrize("kind", [Bubblewrap, Rlimits])
def test_a_program_dies_with_the_process_that_runs_it(kind: type[LocalSandbox]) -> None:
    text = RUNS_FOR_A_MINUTE.format(module=kind.__module__.rpartition(".")[2], name=kind.__name__)
    word = str(MEMORY_MB + 200 << 20)
    runner = subprocess.Popen([sys.executable, "-c", text, str(MEMORY_MB + 200)])
    try:
        assert _soon(lambda: bool(processes_with(word)))  # which also shows that what is left over would be found
    finally:
        runner.kill()
        runner.wait()
    assert _soon(lambda: not processes_with(word))


def test_nothing_runs_when_its_outcome_is_there() -> None:
    program = "import os\nx = bytearray(300 << 20)\nos.closerange(0, 64)\nwhile True: pass"
    limits = Limits(seconds=0.4, memory_mb=MEMORY_MB + 600)
    for run in (
        lambda: Bubblewrap().run(program, b"", limits),
        lambda: judge_tests(Bubblewrap(), program, ["assert f(1) + 1 == 2"], "", "", limits).outcome,
    ):
        assert run().status == "timeout"
        assert not processes_with(str(limits.memory_mb << 20))


def test_the_program_that_tests_ask_has_no_more_threads_than_another_one() -> None:
    (program,) = (hostile.program for hostile in ALL if hostile.name == "threads of little memory")
    judged = judge_tests(Bubblewrap(), program, ["assert f(1) + 1 == 2"], "", "", Limits(seconds=2.0))
    assert judged.outcome.status == ("threads" if os.geteuid() == 0 else "timeout")


def test_closing_the_pool_ends_its_programs() -> None:
    memory_mb = MEMORY_MB + 400
    word = str(memory_mb << 20)
    sandbox = SandboxConfig(type="bubblewrap", run_timeout_s=60.0, memory_mb=memory_mb)
    gold = {"tests": ["assert f(1) == 1"]}
    with ThreadPoolExecutor(1) as threads, ScorerPool(RewardConfig(timeout_s=90.0, sandbox=sandbox)) as pool:
        scores = threads.submit(asyncio.run, pool.score([ScoreRequest("mbpp", "while True: pass", gold)]))
        assert _soon(lambda: bool(processes_with(word)))
        pool.close()
        with pytest.raises(RunError):
            scores.result(timeout=20)
    assert _soon(lambda: not processes_with(word))


def _soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def processes_with(word: str) -> list[str]:
    """Command lines of this machine's processes that have this word."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if word in words:
            found.append(" ".join(words)[:100])
    return found
