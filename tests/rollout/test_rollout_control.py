"""Other threads: abort, pause, resume, sleep, new weights in the middle of a generation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from rollout_models import FAMILY, build, engine_for, prompt, request

from verl_core.config.errors import RunError
from verl_core.rollout.hf import HfEngine
from verl_core.rollout.protocol import Completion

MODEL = build(FAMILY["qwen2-tied"])
LONG = 20_000  # tokens: many seconds, cut short by what each test does
WAIT = 60.0  # seconds until a test that hangs fails


class Pulse:
    """Stands for a tokenizer; it is asked once a token when a request has stop strings, so it tells that rows run."""

    def __init__(self) -> None:
        self.beat = threading.Event()

    def decode(self, ids: list[int], **_: Any) -> str:
        self.beat.set()
        return "x" * len(ids)

    def wait(self) -> None:
        self.beat.clear()
        assert self.beat.wait(WAIT), "the engine draws no tokens"


def long_request(name: str):
    return request(name, prompt(0), max_tokens=LONG, ignore_eos=True, stop=("never",))


@contextmanager
def running(*names: str) -> Iterator[tuple[HfEngine, Pulse, Future[list[Completion]], Callable]]:
    """An engine that generates long answers in a thread, has drawn a token, and is ended when the test is over."""
    pulse = Pulse()
    engine = engine_for(MODEL, pulse, max_model_len=LONG)
    with ThreadPoolExecutor(2) as pool:
        future = pool.submit(engine.generate, [long_request(name) for name in names])
        try:
            pulse.wait()
            yield engine, pulse, future, lambda ids: pool.submit(engine.generate, [long_request(i) for i in ids])
        finally:
            engine.abort(names)
            engine.resume()
            future.result(WAIT)


def test_abort_from_another_thread_keeps_the_tokens():
    with running("a", "b") as (engine, pulse, future, _):
        engine.abort(["a", "unknown"])
        pulse.wait()
        assert not future.done()  # b goes on
        engine.abort(["b"])
        a, b = future.result(WAIT)
        assert (a.finish, b.finish) == ("abort", "abort")
        assert 0 < len(a.ids) <= len(b.ids) < LONG - 6
        assert len(a.logps) == len(a.versions) == len(a.ids)
        assert a.ids == b.ids[: len(a.ids)]


def test_an_abort_reaches_the_queue_and_is_forgotten_afterwards():
    with running("a") as (engine, _, future, submit):
        waiting = submit(["b"])
        while "b" not in engine._control._known:
            pass
        engine.abort(["b", "a"])
        assert future.result(WAIT)[0].finish == "abort"
        assert (waiting.result(WAIT)[0].finish, waiting.result(WAIT)[0].ids) == ("abort", [])
    engine.abort(["c"])  # nobody has asked for it yet
    short = [request(name, prompt(0), max_tokens=3, ignore_eos=True) for name in "bc"]
    assert [c.finish for c in engine.generate(short)] == ["length", "length"]


def test_pause_abort_ends_the_running_generation_and_holds_later_ones():
    with running("a") as (engine, _, future, submit):
        engine.pause("abort")
        assert future.done() and future.result()[0].finish == "abort"
        later = submit(["b"])
        with pytest.raises(TimeoutError):
            later.result(0.2)
        engine.resume()
        with pytest.raises(TimeoutError):
            later.result(0.2)  # it runs now, for long
        engine.abort(["b"])
        assert later.result(WAIT)[0].ids


def test_pause_wait_returns_when_the_generation_is_complete():
    engine = engine_for(MODEL, max_model_len=400)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(engine.generate, [request("a", prompt(0), max_tokens=300, ignore_eos=True)])
        while "a" not in engine._control._running:
            assert not future.done()
        engine.pause("wait")
        assert future.result(WAIT)[0].finish == "length"
        assert len(future.result()[0].ids) == 300
    engine.resume()


def test_pause_keep_freezes_and_new_weights_take_over_at_the_next_token():
    with running("a") as (engine, pulse, future, _):
        engine.pause("keep")
        pulse.beat.clear()
        assert not pulse.beat.wait(0.2)  # nothing is drawn
        with pytest.raises(RunError, match="while it generates"):
            engine.sleep()
        engine.update_weights(MODEL.named_parameters(), version=2)
        engine.resume()
        pulse.wait()
        engine.abort(["a"])
        versions = future.result(WAIT)[0].versions
        assert set(versions) == {1, 2} and versions == sorted(versions)


def test_new_weights_need_no_pause():
    """They come between two tokens; what is drawn afterwards is the new model's."""
    other = build(FAMILY["qwen2-tied"], seed=9)
    with running("a") as (engine, pulse, future, _):
        engine.update_weights(other.named_parameters(), version=2)
        pulse.wait()
        engine.abort(["a"])
        versions = future.result(WAIT)[0].versions
        assert set(versions) == {1, 2} and versions == sorted(versions)


def test_an_update_that_fails_under_a_generation_ends_it():
    """Not one more token is drawn: part of the weights may have been overwritten where they lie."""
    pulse = Pulse()
    engine = engine_for(MODEL, pulse, max_model_len=LONG)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(engine.generate, [long_request("a")])
        try:
            pulse.wait()
            engine.health()
            with pytest.raises(KeyError, match="weights did not come"):
                engine.update_weights(list(MODEL.named_parameters())[:3], version=2)
            with pytest.raises(RunError, match="an update of the hf engine's weights failed while rows ran"):
                future.result(WAIT)
        finally:
            engine.abort(["a"])
    with pytest.raises(RunError, match="failed while rows ran"):  # by which a process of its own ends
        engine.health()


def test_sleep_frees_the_cache_and_wake_brings_it_back():
    engine = engine_for(MODEL)
    asked = [request("a", prompt(0))]
    before = engine.generate(asked)[0]
    engine.sleep()
    assert engine._cache is None
    with pytest.raises(RunError, match="asleep"):
        engine.generate(asked)
    engine.wake()
    assert torch.equal(torch.tensor(engine.generate(asked)[0].logps), torch.tensor(before.logps))
