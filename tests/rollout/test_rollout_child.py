"""An engine in a process of its own: what crosses the border, how it fails, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rollout_children import HERE, WAIT, child, clockwork, own_descendants, runs, until
from rollout_factories import token

from verl_core.config.errors import EnvError, MachineError, RunError, UserError
from verl_core.rollout.child import ChildEngine, EngineLost, EngineStalled
from verl_core.rollout.protocol import Completion, Sampling, TokenRequest

LONG = 1_000_000  # tokens: for ever


def ask(name: str, tokens: int = 5, seed: int = 1, prompt: int = 3, **sampling) -> TokenRequest:
    return TokenRequest(name, "session", tuple(range(prompt)), Sampling(tokens, **sampling), seed)


def expected(request: TokenRequest) -> list[int]:
    return [token(request.seed, len(request.ids) + i) for i in range(request.sampling.max_tokens)]


@pytest.fixture
def engine():
    with clockwork() as engine:
        yield engine


def test_completions_come_back_in_order_with_every_field(engine):
    engine.call("set_version", 7).result(WAIT)
    requests = [ask(f"r{i}", tokens=1 + i % 5, seed=2**70 + i, prompt=1 + i) for i in range(50)]
    completions = engine.generate(requests)
    assert [c.request_id for c in completions] == [r.request_id for r in requests]
    assert [c.ids for c in completions] == [expected(r) for r in requests]
    assert completions[3].logps == [-1 / 5, -1 / 6, -1 / 7, -1 / 8] and completions[3].versions == [7] * 4
    assert {c.finish for c in completions} == {"length"} and {c.extras["pid"] for c in completions} == {engine.pid}
    assert engine.pid != os.getpid() and engine.generate([]) == []


def test_requests_cross_the_border_unchanged():
    with child("rollout_factories:mirror") as engine:
        requests = [ask("ä\n", seed=-3, temperature=0.7, top_p=0.9, top_k=4, stop=("</s>", "\n"), ignore_eos=True)]
        assert engine.generate(requests)[0].extras["seen"] == repr(requests[0])


def test_an_answer_too_few_is_an_error_not_a_hang():
    with child("rollout_factories:forgetful") as engine, pytest.raises(RunError, match="answered wrongly"):
        engine.generate([ask("a"), ask("b")])


def test_what_on_parts_raises_fails_its_call_alone():
    def tell(parts):
        raise ZeroDivisionError("in the caller's own code")

    with clockwork(token_s=0.001) as engine:
        with pytest.raises(ZeroDivisionError, match="own code"):
            engine.generate([ask("a", tokens=100)], tell)
        assert engine.generate([ask("b", tokens=150)])[0].ids == expected(ask("b", tokens=150))  # a's answer came too


@pytest.mark.parametrize("factory", ["unfinished", "garbled"])
def test_an_answer_that_cannot_be_read_is_an_error_not_a_hang(factory):
    with child(f"rollout_factories:{factory}") as engine:
        with pytest.raises(RunError, match="answered wrongly" if factory == "unfinished" else "cannot be read"):
            engine.generate([ask("a")])
        assert engine.alive == (factory == "unfinished")


def test_many_threads_call_at_the_same_time():
    with clockwork(token_s=0.05) as engine, ThreadPoolExecutor(16) as threads:
        start = time.monotonic()
        requests = [ask(str(i), tokens=10, seed=i) for i in range(16)]
        answers = list(threads.map(lambda request: engine.generate([request])[0], requests))
        assert [a.ids for a in answers] == [expected(r) for r in requests]
        assert time.monotonic() - start < 16 * 10 * 0.05 / 2  # one after the other it would be twice that and more


def test_tokens_on_the_way_add_up_to_the_answer():
    parts = []
    with clockwork(token_s=0.001) as engine:
        requests = [ask("long", tokens=100), ask("short", tokens=7, seed=2)]
        long, short = engine.generate(requests, on_parts=parts.extend)
    assert [p.index for p in parts if p.finish] == [1]  # the call's end tells the rest
    told = [[t for p in parts if p.index == i for t in p.ids] for i in (0, 1)]
    assert told == [long.ids[:96], short.ids] and len([p for p in parts if p.index == 0]) >= 3


def test_abort_pause_and_resume_reach_a_running_generation():
    with clockwork(token_s=0.001) as engine, ThreadPoolExecutor(2) as threads:
        heard = threading.Event()
        future = threads.submit(engine.generate, [ask("a", LONG)], lambda parts: heard.set())
        assert heard.wait(WAIT)
        engine.pause("keep")
        heard.wait(0.1)  # a part may have been on the way
        heard.clear()
        assert not heard.wait(0.7)
        engine.resume()
        assert heard.wait(WAIT)
        engine.abort(["a"])
        answer = future.result(WAIT)[0]
        assert answer.finish == "abort" and answer.ids == expected(ask("a", len(answer.ids)))
        engine.sleep()
        engine.wake()
        assert engine.call("seen").result(WAIT) == [["pause", "keep"], ["resume"], ["sleep"], ["wake"]]


def test_any_method_is_called_with_json_and_errors_keep_their_kind(engine):
    assert engine.call("echo", 1, [2, None], name={"a": 0.5}).result(WAIT) == [1, [2, None], {"name": {"a": 0.5}}]
    with pytest.raises(KeyError, match="a name") as caught:
        engine.call("fail", "key").result(WAIT)
    assert "in fail" in caught.value.__notes__[0]
    with pytest.raises(MachineError, match="no") as machine:
        engine.call("fail", "machine").result(WAIT)
    assert machine.value.hint == "go"
    with pytest.raises(RunError, match="ZeroDivisionError: by zero"):
        engine.call("fail", "other").result(WAIT)
    with pytest.raises(NotImplementedError, match="no method 'fly'"):
        engine.call("fly").result(WAIT)
    with pytest.raises(NotImplementedError, match="no method '__class__'"):
        engine.call("__class__").result(WAIT)
    with pytest.raises(TypeError, match="not JSON serializable"):
        engine.call("echo", object())
    with pytest.raises(ValueError, match="empty prompt"):
        engine.generate([ask("a", prompt=0)])
    assert engine.generate([ask("a")])[0].ids == expected(ask("a"))  # it goes on after all of that


# --- starts that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "kind", "message"),
    [
        ("lacks_a_package", EnvError, "lacks the package 'package_that_no_environment_has'"),
        ("refuses", MachineError, "no GPU is free"),
        ("breaks", RunError, r"cannot start: shard 3 is cut\n  loading shard 3 of 4"),
        ("exits", RunError, r"ended with exit code 7\n  CUDA error: device lost"),
        ("is_killed", RunError, "was killed by SIGKILL"),
        ("nothing", UserError, "rollout_factories has no function 'nothing'"),
    ],
)
def test_a_start_that_fails_says_why(factory, kind, message):
    with pytest.raises(kind, match=message) as caught:
        child(f"rollout_factories:{factory}")
    assert type(caught.value) is kind and (caught.value.hint or kind is UserError)
    assert not own_descendants()


def test_a_start_that_takes_too_long_is_ended_with_its_last_words():
    with pytest.raises(RunError, match=r"not ready after 4 s\n  compiling"):
        child("rollout_factories:takes_long", start_s=4.0)
    assert not own_descendants()


def test_what_it_prints_goes_to_the_log(tmp_path):
    log = tmp_path / "engines" / "0.log"
    for _ in range(2):
        with pytest.raises(RunError, match="the rollout engine mine ended with exit code 7") as caught:
            child("rollout_factories:exits", log=log, name="mine")
        assert caught.value.hint == f"look at what it printed last, in {log}"
    assert log.read_text() == "CUDA error: device lost\n" * 2


# --- death and stalls ------------------------------------------------------------------------------------------------


def test_death_answers_every_open_call_and_every_later_one():
    with clockwork(token_s=0.01) as engine, ThreadPoolExecutor(3) as threads:
        heard = threading.Event()
        open_calls = [threads.submit(engine.generate, [ask(n, LONG)], lambda parts: heard.set()) for n in "abc"]
        assert heard.wait(WAIT) and engine.alive
        os.kill(engine.pid, signal.SIGKILL)
        for call in open_calls:
            with pytest.raises(EngineLost, match="was killed by SIGKILL"):
                call.result(WAIT)
        assert not engine.alive
        with pytest.raises(EngineLost, match="SIGKILL"):
            engine.generate([ask("d")])
        with pytest.raises(EngineLost, match="SIGKILL"):
            engine.call("seen").result(WAIT)


def test_a_stopped_process_is_a_stall_and_is_killed():
    with clockwork({"stall_s": 1.0}, token_s=0.01) as engine, ThreadPoolExecutor(1) as threads:
        future = threads.submit(engine.generate, [ask("a", LONG)])
        until(lambda: engine.call("echo").result(WAIT))
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(EngineStalled, match="no sign of life for 1 s"):
            future.result(WAIT)
        assert not runs(engine.pid)


def test_an_engine_whose_health_check_hangs_is_a_stall():
    with clockwork({"stall_s": 1.0}) as engine, pytest.raises(EngineStalled):
        engine.call("hang").result(WAIT)


def test_the_call_that_broke_the_engine_is_told_why_although_another_noticed_first():
    with clockwork({"stall_s": 5.0}, token_s=0.01) as engine, ThreadPoolExecutor(1) as threads:
        running = threads.submit(engine.generate, [ask("a", LONG)])
        engine.call("echo").result(WAIT)
        with pytest.raises(KeyError, match="the cause"):
            engine.call("break_down").result(WAIT)
        assert isinstance(running.exception(WAIT), EngineLost)


def test_a_slow_engine_is_no_stall():
    with clockwork({"stall_s": 0.5}, token_s=1.5) as engine:
        time.sleep(0.6)  # nothing open, nothing said
        assert engine.generate([ask("a", 1)])[0].ids == expected(ask("a", 1))


def test_close_ends_open_calls_and_may_come_twice():
    engine = clockwork(token_s=0.01)
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(engine.generate, [ask("a", LONG)])
        engine.call("echo").result(WAIT)
        engine.close()
        engine.close()
        with pytest.raises(EngineLost, match="was closed"):
            future.result(WAIT)
    assert not own_descendants()


# --- nothing is left -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "kill"])
def test_what_the_engine_has_started_ends_with_it(end):
    engine = clockwork()
    pids = engine.call("spawn").result(WAIT)
    assert all(runs(pid) for pid in pids)
    if end == "kill":
        os.kill(engine.pid, signal.SIGKILL)
        until(lambda: not engine.alive)
    engine.close()
    assert not any(runs(pid) for pid in pids) and not own_descendants()


_PARENT = """
import os, signal, sys
from rollout_children import clockwork
engine = clockwork(token_s=0.01)
print(engine.pid, *engine.call("spawn").result(), flush=True)
match sys.argv[1]:
    case "returns": pass
    case "raises": raise SystemExit("enough")
    case "exits": os._exit(3)
    case "stays": signal.pause()
"""


@pytest.mark.parametrize("way", ["returns", "raises", "exits", "stays"])
def test_the_child_ends_with_its_parent_whatever_way(way):
    path = os.pathsep.join([str(HERE), *(p for p in sys.path if Path(p, "verl_core").is_dir())])
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, way], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    if way == "stays":
        assert all(runs(pid) for pid in pids)
        parent.kill()
    parent.wait(WAIT)
    parent.stdout.close()
    until(lambda: not any(runs(pid) for pid in pids))


def test_importing_the_parents_end_costs_no_torch():
    code = "import sys; from verl_core.rollout.child import ChildEngine; print('torch' in sys.modules)"
    path = os.pathsep.join(p for p in sys.path if Path(p, "verl_core").is_dir())
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout == "False\n"


def test_completion_types():
    """The border's promise: lists of Python numbers, not arrays."""
    with clockwork() as engine:
        answer = engine.generate([ask("a")])[0]
    assert isinstance(answer, Completion) and isinstance(engine, ChildEngine)
    assert {type(x) for x in answer.ids + answer.versions} == {int} and {type(x) for x in answer.logps} == {float}
