"""StepLoop: rows of many callers, what may happen between two steps, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
from rollout_children import until

from verl_core.config.errors import RunError, UserError
from verl_core.rollout.protocol import Sampling, TokenRequest
from verl_core.rollout.rows import Row, row_for
from verl_core.rollout.stepping import StepLoop


class Counter:
    """A stepper whose rows draw 0, 1, 2, ... and which, like an asynchronous engine, is always one step ahead."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.ahead: list[str] = []
        self.thread = threading.get_ident()
        self.version = 0
        self.broken = False
        self.closed = False

    def add(self, key: str, row: Row) -> None:
        if row.request.seed < 0:
            raise UserError("no negative seeds here")
        self.rows[key] = row

    def drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.rows.pop(key, None)

    def step(self) -> list[str]:
        assert threading.get_ident() == self.thread
        if self.broken:
            raise ZeroDivisionError("the kernel failed")
        time.sleep(0.0005)
        ended = self.settle()
        self.ahead = list(self.rows)
        return ended

    def settle(self) -> list[str]:
        keys, self.ahead = self.ahead, []
        for row in (self.rows[key] for key in keys if key in self.rows):
            row.push(len(row.ids), -1.0, self.version, frozenset())
        ended = [key for key, row in self.rows.items() if row.finish]
        self.drop(ended)
        return ended

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def loop():
    loop = StepLoop(Counter, "counting")
    yield loop
    loop.close()


def rows(count: int, tokens: int, name: str = "r", seed: int = 0) -> list[Row]:
    return [
        row_for(TokenRequest(f"{name}{i}", "s", (1, 2), Sampling(max_tokens=tokens), seed), 10**6, None)
        for i in range(count)
    ]


def start(loop: StepLoop[Counter], mine: list[Row]) -> threading.Thread:
    """Runs them in another thread and waits until they have tokens."""
    thread = threading.Thread(target=loop.run, args=(mine,))
    thread.start()
    while not all(row.ids for row in mine):
        time.sleep(0.001)
    return thread


def test_many_callers_share_the_steps(loop):
    batches = [rows(5, 10 + i, f"t{i}-") for i in range(8)]
    threads = [threading.Thread(target=loop.run, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for i, batch in enumerate(batches):
        assert [row.ids for row in batch] == [list(range(10 + i))] * 5
        assert {row.finish for row in batch} == {"length"}


def test_an_abort_keeps_the_tokens_and_leaves_the_others(loop):
    mine = rows(3, 300)
    thread = start(loop, mine)
    loop.abort(["r1", "unknown"])
    thread.join(20)
    assert [row.finish for row in mine] == ["length", "abort", "length"]
    assert 0 < len(mine[1].ids) < 300 and len(mine[0].ids) == 300


def test_keep_freezes_and_a_job_sees_every_token_drawn_before_it(loop):
    mine = rows(2, 400)
    thread = start(loop, mine)
    loop.pause("keep")
    had = [list(row.ids) for row in mine]
    time.sleep(0.02)
    assert [row.ids for row in mine] == had and loop.generating
    loop.between_steps(lambda counter: setattr(counter, "version", 7))
    loop.resume()
    thread.join(20)
    for row, before in zip(mine, had, strict=True):
        assert row.ids == list(range(400))
        assert row.versions == [0] * len(before) + [7] * (400 - len(before))


def test_a_job_without_a_pause_splits_the_versions_once(loop):
    mine = rows(2, 400)
    thread = start(loop, mine)
    loop.between_steps(lambda counter: setattr(counter, "version", 1))
    thread.join(20)
    assert all(row.versions == sorted(row.versions) and set(row.versions) == {0, 1} for row in mine)


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_pause_returns_when_nothing_runs_and_holds_what_comes_later(loop, mode):
    mine, later = rows(2, 60), rows(2, 5, "later")
    thread = start(loop, mine)
    loop.pause(mode)
    assert {row.finish for row in mine} == {"abort" if mode == "abort" else "length"} and not loop.generating
    held = threading.Thread(target=loop.run, args=(later,))
    held.start()
    time.sleep(0.02)
    assert not any(row.ids for row in later)
    loop.abort(["later0"])
    loop.resume()
    for waiting in (thread, held):
        waiting.join(20)
    assert [(row.finish, len(row.ids)) for row in later] == [("abort", 0), ("length", 5)]


def test_a_refused_row_fails_its_call_alone(loop):
    mine = rows(2, 100)
    thread = start(loop, mine)
    with pytest.raises(UserError, match="negative seeds"):
        loop.run([*rows(2, 5, "x"), *rows(1, 5, "y", seed=-1)])
    thread.join(20)
    assert all(len(row.ids) == 100 for row in mine)


def test_a_failing_step_ends_every_call_and_every_later_one(loop):
    mine = rows(2, 10**5)
    errors = list[BaseException]()

    def run() -> None:
        try:
            loop.run(mine)
        except RunError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    loop.between_steps(lambda counter: setattr(counter, "broken", True))
    thread.join(20)
    assert "the kernel failed" in str(errors[0])
    for call in (lambda: loop.run(rows(1, 1)), lambda: loop.pause("wait"), loop.health):
        with pytest.raises(RunError, match="the kernel failed"):
            call()


def test_a_failure_before_a_job_is_its_error_and_that_of_who_pauses():
    class Failing(Counter):
        def settle(self) -> list[str]:
            if self.broken:
                time.sleep(0.05)  # the others come to wait meanwhile
                raise ZeroDivisionError("the kernel failed")
            return super().settle()

    loop = StepLoop(Failing, "failing")
    mine = rows(1, 10**5)
    with ThreadPoolExecutor(3) as threads:
        running = threads.submit(loop.run, mine)
        until(lambda: loop.generating)
        pausing = threads.submit(loop.pause, "wait")
        loop.between_steps(lambda counter: setattr(counter, "broken", True))
        job = threads.submit(loop.between_steps, lambda counter: None)
        errors = [call.exception(20) for call in (running, pausing, job)]
    assert all("the kernel failed" in str(error) for error in errors)
    assert len({id(error) for error in errors}) == 3  # one that several threads raise collects all their tracebacks


def test_what_a_job_raises_reaches_its_caller_only(loop):
    with pytest.raises(ZeroDivisionError):
        loop.between_steps(lambda counter: 1 / 0)
    mine = rows(1, 3)
    loop.run(mine)
    assert mine[0].finish == "length"


def test_health_waits_for_the_step_that_hangs():
    free = threading.Event()

    class Hanging(Counter):
        def step(self) -> list[str]:
            free.wait(20)
            return super().step()

    loop = StepLoop(Hanging, "hanging")
    loop.health()
    call = threading.Thread(target=loop.run, args=(rows(1, 2),))
    call.start()
    while not loop.generating:
        time.sleep(0.001)
    time.sleep(0.02)
    watch = threading.Thread(target=loop.health)
    watch.start()
    watch.join(0.05)
    assert watch.is_alive()
    free.set()
    for thread in (watch, call):
        thread.join(20)
        assert not thread.is_alive()
    loop.close()


def test_an_engine_that_cannot_be_made_says_why():
    def make() -> Counter:
        raise UserError("no such model")

    with pytest.raises(UserError, match="no such model"):
        StepLoop(make, "counting")


def test_close_ends_the_stepper_and_those_who_wait():
    steppers = list[Counter]()
    loop = StepLoop(lambda: steppers.append(Counter()) or steppers[0], "counting")
    loop.pause("wait")
    errors = list[BaseException]()

    def run() -> None:
        try:
            loop.run(rows(1, 5))
        except RunError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.02)
    loop.close()
    loop.close()
    thread.join(20)
    assert len(errors) == 1 and steppers[0].closed
