"""The client of a sandbox server: outcomes as they are, and errors apart from outcomes."""

import json
import shutil
from collections.abc import Iterator

import pytest
from sandbox_fusion_server import Server, serving

from verl_core.config.errors import EnvError, RunError
from verl_core.config.schema_sandbox import SandboxConfig
from verl_core.rewards.code import compute_score
from verl_core.rewards.sandbox import remote
from verl_core.rewards.sandbox.protocol import Limits
from verl_core.rewards.sandbox.remote import Remote

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap (bwrap) is not installed")

LIMITS = Limits(seconds=0.5, output_kb=4)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(remote, "_WAIT_S", 0.01)
    with serving() as server:
        yield server


def client(server: Server, **keys: object) -> Remote:
    return Remote(SandboxConfig(type="remote", url=server.url, **keys))


def test_outcomes_arrive_as_they_are(server: Server) -> None:
    sandbox = client(server)
    ok = sandbox.run("print(input())", "näh\n".encode(), LIMITS)
    assert (ok.status, ok.stdout.decode(), ok.exit_code) == ("ok", "näh\n", 0)
    failed = sandbox.run("raise SystemExit(3)", b"", LIMITS)
    assert (failed.status, failed.exit_code) == ("failed", 3)
    assert sandbox.run("while True: pass", b"", LIMITS).status == "timeout"
    long = sandbox.run("print('x' * 9000)", b"", LIMITS)
    assert (long.status, len(long.stdout)) == ("output", 4096)


def test_the_request_is_the_protocols(server: Server) -> None:
    Remote(SandboxConfig(url=f"{server.url}/run_code")).run("print(1)", b"in", Limits(seconds=2, memory_mb=300))
    assert server.seen == [
        {
            "code": "print(1)",
            "language": "python",
            "stdin": "in",
            "compile_timeout": 2,
            "run_timeout": 2,
            "memory_limit_MB": 300,
        }
    ]


def test_a_busy_server_is_asked_again(server: Server) -> None:
    server.script += [429, 503]
    assert client(server).run("print(1)", b"", LIMITS).stdout == b"1\n"
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("script", "keys", "requests", "words"),
    [
        ([500] * 9, {"retries": 2}, 3, "HTTP 500"),
        ([404], {}, 1, "HTTP 404"),
        ([b"no json"], {}, 1, "gave no outcome"),
        ([b"[]"], {}, 1, "gave no outcome"),
        ([b"{}"], {}, 1, "failed"),
        ([b'{"status": "SandboxError", "message": "no pods", "run_result": {}}'], {}, 1, "no pods"),
        ([b'{"run_result": {"execution_time": "x"}}'], {}, 1, "gave no outcome"),
    ],
)
def test_what_is_no_outcome_is_an_error(
    server: Server, script: list[int | bytes | float], keys: dict, requests: int, words: str
) -> None:
    server.script += script
    with pytest.raises(RunError, match=words):
        client(server, **keys).run("print(1)", b"", LIMITS)
    assert len(server.seen) == requests


def test_what_a_program_prints_is_no_error_of_the_server(server: Server) -> None:
    server.script += [b'{"run_result": {"return_code": 0, "stdout": "' + b"x" * 10**6]
    assert client(server).run("print(1)", b"", LIMITS).status == "output"
    server.script += [b'{"run_result": {"return_code": 0, "stdout": "\\ud800"}}']
    assert client(server).run("print(1)", b"", LIMITS).stdout == b"?"


def test_a_server_that_is_not_there_is_an_error(server: Server) -> None:
    sandbox = Remote(SandboxConfig(url="http://127.0.0.1:9", retries=1))
    with pytest.raises(RunError, match="gave no outcome"):
        sandbox.run("print(1)", b"", LIMITS)


def test_a_server_that_is_silent_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_OVERHEAD_S", 0.1)
    server.script += [5.0]
    with pytest.raises(RunError, match="timed out"):
        client(server, retries=0).run("print(1)", b"", LIMITS)


def test_cases_are_run_at_the_same_time_within_the_limit(server: Server) -> None:
    server.script += [0.2] * 6
    gold = {"inputs": [f"{i}\n" for i in range(6)], "outputs": [str(i * i) for i in range(6)]}
    config = SandboxConfig(url=server.url, timeout_s=8.0, max_concurrent=3)
    verdict = compute_score("apps", "```python\nprint(int(input()) ** 2)\n```", gold, sandbox=config)
    assert verdict["score"] == 1.0
    assert server.at_once == 3


def test_calls_and_methods_are_judged_from_here(server: Server) -> None:
    config = SandboxConfig(url=server.url, timeout_s=8.0)
    gold = json.dumps({"tests": ["assert f(2) == (4, 'x')"]})
    assert compute_score("mbpp", "def f(n): return n * n, 'x'", gold, sandbox=config)["score"] == 1.0
    assert compute_score("mbpp", "def f(n): return n * n, 'y'", gold, sandbox=config)["reason"] == "wrong result"
    assert "'x'" not in str(server.seen)


def test_tests_that_need_two_sandboxes_are_refused(server: Server) -> None:
    gold = {"tests": ["assert f(2) + 1 == 5"]}
    with pytest.raises(EnvError, match="sandbox of this machine"):
        compute_score("mbpp", "def f(n): return 4", gold, sandbox=SandboxConfig(url=server.url, timeout_s=8.0))
