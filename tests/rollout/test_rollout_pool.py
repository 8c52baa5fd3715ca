"""Several engines behind one: deaths, stalls, restarts, and what all of them are told."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from rollout_children import WAIT, child, clockwork, own_descendants, runs, until
from rollout_factories import token

from verl_core.config.errors import MachineError, RunError
from verl_core.rollout.child import ChildEngine
from verl_core.rollout.pool import ReplicaPool
from verl_core.rollout.protocol import Completion, Sampling, TokenRequest
from verl_core.rollout.restarts import RestartBudget

LONG = 1_000_000  # tokens: for ever


def ask(name: str, tokens: int = 5, seed: int = 1, session: str | None = None, **sampling: Any) -> TokenRequest:
    return TokenRequest(name, session or name, (1, 2, 3), Sampling(tokens, **sampling), seed)


def expected(request: TokenRequest) -> list[int]:
    return [token(request.seed, len(request.ids) + i) for i in range(request.sampling.max_tokens)]


class Fleet:
    """Starts clockwork engines and remembers them, latest first under each number."""

    def __init__(self, token_s: float = 0.002, **settings: Any):
        self.token_s, self.settings = token_s, settings
        self.engines: dict[int, ChildEngine] = {}
        self.starts: list[int] = []
        self.before_restart: Callable[[int], None] = lambda number: None
        self.version = 0
        self.refreshed: list[int] = []  # with which versions

    def start(self, number: int) -> ChildEngine:
        if number in self.engines:
            self.before_restart(number)
        self.starts.append(number)
        self.engines[number] = clockwork(self.settings, token_s=self.token_s)
        return self.engines[number]

    def refresh(self, engine: ChildEngine) -> None:
        self.refreshed.append(self.version)
        engine.call("set_version", self.version).result(WAIT)

    def kill(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.engines[number].pid, how)


@contextmanager
def pool_of(
    size: int, fleet: Fleet | None = None, **budget: Any
) -> Iterator[tuple[ReplicaPool[ChildEngine], Fleet, Callable[..., Future[list[Completion]]]]]:
    """A pool, its engines, and `generate` in a thread."""
    fleet = fleet or Fleet()
    settings = RestartBudget(**({"delay_s": 0.01} | budget))
    with (
        ThreadPoolExecutor(8) as threads,
        ReplicaPool(fleet.start, size, refresh=fleet.refresh, budget=settings) as pool,
    ):
        yield pool, fleet, lambda requests: threads.submit(pool.generate, requests)


def under_way(pool: ReplicaPool, total: int) -> None:
    """Waits until tokens have come on the way."""
    until(lambda: 0 < sum(pool.outstanding) < total)


def test_all_replicas_work_and_answers_come_back_in_order():
    with pool_of(3) as (pool, fleet, _):
        requests = [ask(f"{p}-{g}", 1 + p, seed=10 * p + g, session=f"p{p}") for p in range(9) for g in range(4)]
        answers = pool.generate(requests)
        assert [a.request_id for a in answers] == [r.request_id for r in requests]
        assert [a.ids for a in answers] == [expected(r) for r in requests]
        assert {a.extras["pid"] for a in answers} == {engine.pid for engine in fleet.engines.values()}
        assert pool.outstanding == [0, 0, 0] and pool.restarts == 0 and pool.generate([]) == []


def test_one_prompt_on_two_replicas_gives_unlike_samples_and_repeats():
    """Case O8 on the pool's side; on real tokens in test_rollout_child_hf."""
    with pool_of(2) as (pool, _, _):
        requests = [ask(str(i), 20, seed=i, session="p") for i in range(4)]
        first, second = pool.generate(requests), pool.generate(requests)
        assert len({a.extras["pid"] for a in first}) == 2 and len({tuple(a.ids) for a in first}) == 4
        assert [a.ids for a in first] == [a.ids for a in second]


def test_twenty_kills_lose_and_double_no_request():
    with pool_of(2, Fleet(token_s=0.001), count=20) as (pool, fleet, submit):
        for kill in range(20):
            requests = [ask(f"{kill}-{i}", 60 + 31 * i, seed=10 * kill + i, session=str(i // 2)) for i in range(5)]
            future = submit(requests)
            under_way(pool, sum(r.sampling.max_tokens for r in requests))
            fleet.kill(kill % 2)
            answers = future.result(WAIT)
            assert [a.request_id for a in answers] == [r.request_id for r in requests]
            assert [a.ids for a in answers] == [expected(r) for r in requests]
            assert all(len(a.logps) == len(a.versions) == len(a.ids) for a in answers)
            until(lambda kill=kill: len(fleet.starts) == 3 + kill and len(pool.each(lambda engine: engine.pid)) == 2)
        assert pool.outstanding == [0, 0] and pool.restarts == 20


def test_what_was_drawn_before_a_death_is_not_drawn_again():
    with pool_of(2, Fleet(token_s=0.002)) as (pool, fleet, submit):
        fleet.version = 5
        request = ask("a", 300)
        future = submit([request])
        under_way(pool, 300)
        pool.each(lambda engine: engine.call("set_version", 5).result(WAIT) if engine is fleet.engines[1] else None)
        fleet.kill(0)
        answer = future.result(WAIT)[0]
        assert answer.ids == expected(request) and answer.logps == [-1 / (4 + i) for i in range(300)]
        assert set(answer.versions) == {0, 5} and answer.versions == sorted(answer.versions)
        assert answer.versions.count(0) % 32 == 0  # parts came each 32 tokens, and none is lost


def test_requests_with_stop_strings_start_again():
    with pool_of(2) as (pool, fleet, submit):
        request = ask("a", 300, stop=("never",))
        future = submit([request])
        under_way(pool, 300)
        pool.each(lambda engine: engine.call("set_version", 5).result(WAIT) if engine is fleet.engines[1] else None)
        fleet.kill(0)
        answer = future.result(WAIT)[0]
        assert answer.ids == expected(request) and set(answer.versions) == {5}


def test_a_stalled_replica_is_replaced():
    with pool_of(2, Fleet(stall_s=1.0)) as (pool, fleet, submit):
        requests = [ask("a", 400), ask("b", 400, seed=2)]
        future = submit(requests)
        under_way(pool, 800)
        stopped = fleet.engines[0].pid
        fleet.kill(0, signal.SIGSTOP)
        assert [a.ids for a in future.result(WAIT)] == [expected(r) for r in requests]
        until(lambda: len(fleet.starts) == 3)
        assert not runs(stopped) and pool.restarts == 1


def test_a_single_replica_comes_back_with_the_current_weights_while_requests_wait():
    with pool_of(1) as (pool, fleet, submit):
        future = submit([ask("a", 200)])
        under_way(pool, 200)
        fleet.version = 9
        fleet.kill(0)
        answer = future.result(WAIT)[0]
        assert answer.ids == expected(ask("a", 200)) and answer.versions[-1] == 9


def test_weights_that_come_during_a_restart_reach_the_restarted_replica():
    with pool_of(2) as (pool, fleet, _):
        entered, go_on = threading.Event(), threading.Event()
        fleet.before_restart = lambda number: (entered.set(), go_on.wait(WAIT))[0]
        fleet.kill(1)
        with pytest.raises(RunError):  # a dead one is noticed at the latest when it is spoken to
            fleet.engines[1].call("echo").result(WAIT)
        pool.each(lambda engine: engine.call("echo").result(WAIT))
        assert entered.wait(WAIT)
        fleet.version = 3
        assert len(pool.each(lambda engine: engine.call("set_version", 3).result(WAIT))) == 1
        go_on.set()
        until(lambda: len(pool.each(lambda engine: engine.pid)) == 2)
        answers = pool.generate([ask(str(i), 3, session=str(i)) for i in range(4)])
        assert len({a.extras["pid"] for a in answers}) == 2 and {v for a in answers for v in a.versions} == {3}


def test_a_replica_that_is_ready_while_weights_are_made_waits_for_whole_ones():
    """Between two optimizer steps the trainer's weights are those of no version."""
    half, whole = -1, 4
    with pool_of(2) as (pool, fleet, _):
        entered, go_on = threading.Event(), threading.Event()
        fleet.before_restart = lambda number: (entered.set(), go_on.wait(WAIT))[0]
        fleet.kill(1)
        pool.each(lambda engine: engine.call("echo").result(WAIT))
        assert entered.wait(WAIT)
        pool.hold()
        fleet.version, lost = half, fleet.engines[1]
        go_on.set()
        until(lambda: fleet.engines[1] is not lost)
        time.sleep(0.3)
        assert fleet.refreshed == [] and len(pool.each(lambda engine: engine.pid)) == 1
        fleet.version = whole
        pool.together(lambda running: {n: e.call("set_version", whole).result(WAIT) for n, e in running.items()} and {})
        until(lambda: len(pool.each(lambda engine: engine.pid)) == 2)
        assert fleet.refreshed == [whole]
        answers = pool.generate([ask(str(i), 3, session=str(i)) for i in range(4)])
        assert len({a.extras["pid"] for a in answers}) == 2 and {v for a in answers for v in a.versions} == {whole}


def test_a_replica_that_is_given_weights_has_them_before_they_change():
    with pool_of(2) as (pool, fleet, _), ThreadPoolExecutor(1) as thread:
        sent, go_on, refresh = threading.Event(), threading.Event(), fleet.refresh
        pool._replicas._refresh = lambda engine: (sent.set(), go_on.wait(WAIT), refresh(engine))[2]
        fleet.kill(0)
        pool.abort([])  # one that is dead is noticed when it is spoken to
        assert sent.wait(WAIT)
        holding = thread.submit(pool.hold)
        with pytest.raises(TimeoutError):
            holding.result(0.3)
        go_on.set()
        holding.result(WAIT)
        assert fleet.refreshed == [0] and len(pool.each(lambda engine: engine.pid)) == 2


def test_a_pool_that_is_closed_while_weights_are_made_leaves_nothing():
    with pool_of(1) as (pool, fleet, _):
        pool.hold()
        fleet.kill(0)
        lost = fleet.engines[0]
        pool.each(lambda engine: engine.call("echo").result(WAIT))
        until(lambda: fleet.engines[0] is not lost)
    until(lambda: not own_descendants())
    assert fleet.refreshed == []


def test_no_replica_left_is_one_clear_error_for_everybody():
    with pool_of(2, count=1) as (pool, fleet, submit):
        futures = [submit([ask(name, LONG), ask(name + "2", LONG)]) for name in "ab"]
        under_way(pool, 4 * LONG)
        fleet.kill(0)
        until(lambda: len(fleet.starts) == 3 and len(pool.each(lambda engine: engine.pid)) == 2)
        fleet.kill(0)
        fleet.kill(1)
        for future in futures:
            with pytest.raises(RunError, match=r"no rollout replica is left of 2, after 1 restarts.*SIGKILL"):
                future.result(WAIT)
        with pytest.raises(RunError, match="no rollout replica is left"):
            pool.generate([ask("c")])
        assert len(fleet.starts) == 3 and pool.outstanding == [0, 0]


def test_a_restart_that_fails_is_tried_again_within_the_budget():
    with pool_of(1, count=3) as (pool, fleet, submit):
        tries = itertools.count()

        def fail_twice(number: int) -> None:
            if next(tries) < 2:
                raise MachineError("the GPU is still full", "wait")

        fleet.before_restart = fail_twice
        future = submit([ask("a", 200)])
        under_way(pool, 200)
        fleet.kill(0)
        assert future.result(WAIT)[0].ids == expected(ask("a", 200)) and pool.restarts == 3
        fleet.kill(0)
        with pytest.raises(RunError, match="no rollout replica is left of 1, after 3 restarts"):
            pool.generate([ask("b", 200)])


def test_the_end_is_told_in_one_line_whatever_the_engine_had_printed(caplog):
    with pool_of(1, count=1) as (pool, fleet, _):
        fleet.before_restart = lambda number: child("rollout_factories:exits", name="clockwork").close()
        fleet.kill(0)
        with caplog.at_level("INFO"), pytest.raises(RunError) as caught:
            pool.generate([ask("a", 200)])
    assert str(caught.value).endswith("the rollout engine clockwork ended with exit code 7")
    assert "exit code 7\n  CUDA error: device lost" in caplog.text


def test_the_budget_is_a_rate():
    with pool_of(1, count=1, within_s=1.5) as (pool, fleet, _):
        start = time.monotonic()
        fleet.kill(0)
        assert pool.generate([ask("a")])[0].ids == expected(ask("a"))
        fleet.kill(0)
        until(lambda: not fleet.engines[0].alive)
        with pytest.raises(RunError, match="no rollout replica is left"):
            pool.generate([ask("b")])
        until(lambda: len(fleet.starts) == 3)
        assert time.monotonic() - start >= 1.5
        until(lambda: pool.each(lambda engine: engine.pid))
        assert pool.generate([ask("b")])[0].ids == expected(ask("b"))


def test_an_error_about_a_request_is_the_callers_and_costs_no_replica():
    with pool_of(2) as (pool, fleet, submit):
        other = submit([ask("other", 200, seed=4)])
        empty = TokenRequest("empty", "e", (), Sampling(LONG), 0)
        with pytest.raises(ValueError, match="empty prompt"):
            pool.generate([empty, ask("long", LONG, session="l")])  # the second is aborted, not waited for
        assert other.result(WAIT)[0].ids == expected(ask("other", 200, seed=4))
        assert pool.outstanding == [0, 0] and pool.restarts == 0 and len(fleet.starts) == 2


def test_abort_ends_requests_everywhere_with_their_tokens():
    with pool_of(2) as (pool, _, submit):
        future = submit([ask("a", LONG), ask("b", LONG, seed=2), ask("c", 50, seed=3)])
        under_way(pool, 2 * LONG + 50)
        pool.abort(["a", "b", "unknown"])
        a, b, c = future.result(WAIT)
        assert (a.finish, b.finish, c.finish) == ("abort", "abort", "length")
        assert a.ids and a.ids == expected(ask("a", len(a.ids))) and b.ids == expected(ask("b", len(b.ids), seed=2))


def test_a_request_that_waits_for_a_replica_can_be_aborted():
    with pool_of(1) as (pool, fleet, submit):
        entered, go_on = threading.Event(), threading.Event()
        fleet.before_restart = lambda number: (entered.set(), go_on.wait(WAIT))[0]
        future = submit([ask("a", LONG)])
        under_way(pool, LONG)
        fleet.kill(0)
        assert entered.wait(WAIT)
        pool.abort(["a"])
        answer = future.result(WAIT)[0]
        go_on.set()
        assert answer.finish == "abort" and answer.ids and answer.ids == expected(ask("a", len(answer.ids)))


def test_pause_and_resume_reach_all_and_those_that_join_later():
    with pool_of(2) as (pool, fleet, submit):
        pool.pause("keep")
        fleet.kill(1)
        pool.each(lambda engine: engine.call("echo").result(WAIT))
        until(lambda: len(pool.each(lambda engine: engine.pid)) == 2 and len(fleet.starts) == 3)
        future = submit([ask("a", session="a"), ask("b", session="b")])
        with pytest.raises(TimeoutError):
            future.result(0.3)
        pool.resume()
        assert [a.ids for a in future.result(WAIT)] == [expected(ask("a")), expected(ask("b"))]
        assert pool.each(lambda engine: engine.call("seen").result(WAIT)) == [[["pause", "keep"], ["resume"]]] * 2


def test_a_replica_lost_while_the_pool_sleeps_is_started_at_wake():
    with pool_of(2) as (pool, fleet, _):
        pool.sleep()
        fleet.kill(0)
        pool.each(lambda engine: engine.call("echo").result(WAIT))
        time.sleep(0.3)
        assert len(fleet.starts) == 2  # its memory belongs to the trainer now
        pool.wake()
        until(lambda: len(pool.each(lambda engine: engine.pid)) == 2)
        assert pool.each(lambda engine: engine.call("seen").result(WAIT)) == [[], [["sleep"], ["wake"]]]


def test_sleep_waits_for_a_replica_that_is_being_restarted():
    with pool_of(2) as (pool, fleet, _), ThreadPoolExecutor(1) as thread:
        entered, go_on = threading.Event(), threading.Event()
        fleet.before_restart = lambda number: (entered.set(), go_on.wait(WAIT))[0]
        fleet.kill(0)
        pool.each(lambda engine: engine.call("echo").result(WAIT))
        assert entered.wait(WAIT)
        sleeping = thread.submit(pool.sleep)
        with pytest.raises(TimeoutError):
            sleeping.result(0.3)
        go_on.set()
        sleeping.result(WAIT)
        assert pool.each(lambda engine: engine.call("seen").result(WAIT)) == [[["sleep"]]] * 2


def test_a_first_start_that_fails_is_raised_and_leaves_nothing():
    def start(number: int) -> ChildEngine:
        if number == 1:
            raise MachineError("the GPU 1 is full", "free it")
        return clockwork()

    with pytest.raises(MachineError, match="the GPU 1 is full"):
        ReplicaPool(start, 3)
    assert not own_descendants()


def test_close_answers_open_calls_and_leaves_nothing():
    with pool_of(2) as (pool, _, submit):
        future = submit([ask("a", LONG), ask("b", LONG)])
        under_way(pool, 2 * LONG)
        pool.close()
        with pytest.raises(RunError, match="were closed while requests were open"):
            future.result(WAIT)
        until(lambda: not own_descendants())


def test_a_restart_that_the_end_cuts_short_is_no_warning(caplog):
    closed = threading.Event()

    def cut_short(number: int) -> None:
        closed.wait(WAIT)
        raise RuntimeError("the event loop is closed")

    with pool_of(1) as (pool, fleet, _):
        fleet.before_restart = cut_short
        fleet.kill(0)
        pool.each(lambda engine: engine.call("set_version", 1).result(WAIT))
        until(lambda: pool.restarts == 1)
        pool.close()
        closed.set()
        until(lambda: not any(thread.name == "restart 0" for thread in threading.enumerate()))
    assert [r.message for r in caplog.records if "cannot be restarted" in r.message] == []
