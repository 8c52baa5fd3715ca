"""The pool of a run's engines over two ranks that are played; the rest is the real thing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from controller_tiny import tiny_config

from verl_core.config.errors import RunError
from verl_core.controller.rollouts import Rollout
from verl_core.rollout.child.errors import EngineLost
from verl_core.rollout.parts import Interrupted, Part
from verl_core.rollout.protocol import Completion, Sampling, TokenRequest

SAMPLING = Sampling(max_tokens=6)


def ask(group: int, sample: int) -> TokenRequest:
    return TokenRequest(f"p{group}/{sample}", f"p{group}", (group,) * 4, SAMPLING, 10 * group + sample)


ASKED = [ask(group, sample) for group in range(2) for sample in range(2)]


def token(request: TokenRequest, place: int) -> int:
    return 100 * request.seed + place


class Rank:
    """Answers as a Worker with an engine in another process would. `dying`: at its next generation, after 2 tokens."""

    def __init__(self, number: int):
        self.number = number
        self.version, self.restarts = -1, 0
        self.alive, self.awake, self.dying = True, True, False
        self.may_restart = threading.Event()
        self.may_restart.set()
        self.unused = 1  # GiB that the trainer's allocator keeps
        self.asked: list[TokenRequest] = []
        self.pushes: list[tuple[int, list[int]]] = []

    def generate(self, requests: list[TokenRequest]) -> list[Completion] | Interrupted:
        assert self.awake
        self.asked += requests
        if self.dying:
            self.alive = self.dying = False
            parts = [self._part(i, request, 4, 6) for i, request in enumerate(requests)]
            return Interrupted(parts, EngineLost("the engine was killed", "look"))
        rows = [self._part(i, request, len(request.ids), 10) for i, request in enumerate(requests)]
        return [
            Completion(r.request_id, p.ids, p.logps, p.versions, "length") for r, p in zip(requests, rows, strict=True)
        ]

    def _part(self, index: int, request: TokenRequest, start: int, end: int) -> Part:
        ids = [token(request, place) for place in range(start, end)]
        return Part(index, ids, [-1.0] * len(ids), [self.version] * len(ids), None)

    def push_weights(self, version: int, engines: list[int]) -> dict[int, EngineLost]:
        self.pushes.append((version, engines))
        if self.number in engines and not self.alive:
            return {self.number: EngineLost("the engine had been killed")}
        if self.number in engines:
            self.version = version
        return {}

    def free_memory(self) -> None:
        self.unused = 0

    def restart_engine(self) -> None:
        assert self.may_restart.wait(60)
        self.alive, self.awake, self.version = True, True, -1
        self.restarts += 1

    def tell_engine(self, method: str, *args: Any) -> None:
        if not self.alive:
            raise EngineLost("the engine had been killed")
        self.awake = method != "sleep"

    def close_engine(self) -> None:
        self.alive = False


class TwoRanks:
    size = 2

    def __init__(self) -> None:
        self.ranks = [Rank(0), Rank(1)]
        self.aside: set[bool] = set()

    async def call(self, method: str, *args: Any) -> list[Any]:
        return [getattr(rank, method)(*args) for rank in self.ranks]

    async def one(self, rank: int, method: str, *args: Any, aside: bool = False) -> Any:
        assert threading.current_thread() is threading.main_thread()  # the controller's loop makes every call
        self.aside.add(aside)
        return await asyncio.to_thread(getattr(self.ranks[rank], method), *args)


class TrainerApart:
    """On another pool than the engines; `weights` says what its parameters are at the moment."""

    size = 1

    def __init__(self, group: TwoRanks):
        self.group, self.weights = group, "whole"
        self.sent: list[tuple[str, list[int]]] = []

    async def call(self, method: str, version: int, engines: list[int]) -> list[dict[int, EngineLost]]:
        assert method == "push_weights"
        self.sent.append((self.weights, engines))
        lost: dict[int, EngineLost] = {}
        for rank in self.group.ranks:
            lost |= rank.push_weights(version, engines)
        return [lost]


def run(do: Callable[[Rollout, TwoRanks], Coroutine[Any, Any, None]], *keys: str) -> None:
    async def work() -> None:
        group = TwoRanks()
        config = tiny_config("smoke", "rollout.engine=vllm", "trainer.device=cpu", *keys)
        rollout = Rollout(group, group, config)  # type: ignore[arg-type]
        await rollout.push_weights(3)
        await do(rollout, group)
        await rollout.close()

    asyncio.run(asyncio.wait_for(work(), 60))


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def is_whole(answers: list[Completion]) -> bool:
    return [a.ids for a in answers] == [[token(r, place) for place in range(4, 10)] for r in ASKED]


def test_the_samples_of_a_prompt_go_to_one_rank_and_answers_keep_their_order():
    async def do(rollout: Rollout, group: TwoRanks) -> None:
        assert is_whole(await rollout.generate(ASKED))
        assert [{r.session_id for r in rank.asked} for rank in group.ranks] == [{"p0"}, {"p1"}]
        assert group.aside == {True} and rollout.restarts == 0

    run(do)


def test_a_lost_engine_is_made_anew_and_gets_the_weights_alone():
    async def do(rollout: Rollout, group: TwoRanks) -> None:
        group.ranks[1].dying = True
        assert is_whole(await rollout.generate(ASKED))
        await until(lambda: group.ranks[1].restarts == 1 and group.ranks[1].version == 3)
        assert rollout.restarts == 1 and group.ranks[0].restarts == 0
        for rank in group.ranks:  # all take part, for the one that needs them
            assert rank.pushes == [(3, [0, 1]), (3, [1])]
        await rollout.sleep()  # joined by now
        await rollout.wake()
        asked = len(group.ranks[1].asked)
        assert is_whole(await rollout.generate(ASKED)) and len(group.ranks[1].asked) > asked

    run(do)


def test_tokens_that_a_lost_engine_had_told_are_kept():
    async def do(rollout: Rollout, group: TwoRanks) -> None:
        group.ranks[1].dying = True
        await rollout.generate(ASKED)
        again = [r for rank in group.ranks for r in rank.asked if len(r.ids) > 4]
        assert sorted(r.request_id for r in again) == ["p1/0", "p1/1"]
        assert all(len(r.ids) == 6 and r.sampling.max_tokens == 4 for r in again)

    run(do)


def test_an_engine_that_is_lost_asleep_is_made_anew_at_wake_with_the_newest_weights():
    async def do(rollout: Rollout, group: TwoRanks) -> None:
        await rollout.sleep()
        group.ranks[0].alive = False
        await rollout.push_weights(4)
        assert group.ranks[1].version == 4 and group.ranks[0].restarts == 0
        await rollout.wake()
        await until(lambda: group.ranks[0].version == 4)
        assert rollout.restarts == 1 and is_whole(await rollout.generate(ASKED))

    run(do)


def test_all_ranks_of_a_span_make_room_for_the_new_engine():
    async def do(rollout: Rollout, group: TwoRanks) -> None:
        group.ranks[0].alive = False
        await rollout.push_weights(4)
        await until(lambda: group.ranks[0].version == 4)
        assert group.ranks[0].restarts == 1 and group.ranks[1].restarts == 0
        assert [rank.unused for rank in group.ranks] == [0, 0]

    run(do, "cluster.nproc=2", "rollout.tensor_model_parallel_size=2")


def test_an_engine_on_another_pool_that_is_back_during_the_optimizer_steps_gets_weights_after_them():
    async def work() -> None:
        group = TwoRanks()
        trainer = TrainerApart(group)
        pools = "cluster.pools={train: {nodes: 1, gpus: 1}, gen: {nodes: 1, gpus: 2}}"
        config = tiny_config("smoke", "trainer.device=cpu", pools, "actor.pool=train", "rollout.pool=gen")
        rollout = Rollout(group, trainer, config)  # type: ignore[arg-type]
        await rollout.push_weights(3)
        group.ranks[1].dying = True
        group.ranks[1].may_restart.clear()
        assert is_whole(await rollout.generate(ASKED))
        await rollout.sleep()
        trainer.weights = "half"
        group.ranks[1].may_restart.set()
        await until(lambda: group.ranks[1].restarts == 1)
        await asyncio.sleep(0.2)
        trainer.weights = "whole"
        await rollout.push_weights(4)
        await until(lambda: [rank.version for rank in group.ranks] == [4, 4])
        assert group.ranks[0].awake and {weights for weights, _ in trainer.sent} == {"whole"}
        await rollout.wake()
        await rollout.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_without_a_budget_the_others_do_the_work_until_none_is_left():
    async def do(rollout: Rollout, group: TwoRanks) -> None:
        group.ranks[0].dying = True
        assert is_whole(await rollout.generate(ASKED))
        await rollout.push_weights(4)
        assert group.ranks[0].pushes[-1] == (4, [1])
        group.ranks[1].dying = True
        with pytest.raises(RunError, match=r"no rollout replica is left of 2, after 0 restarts \(rollout.restarts: 0"):
            await rollout.generate(ASKED)

    run(do, "rollout.restarts=0")
