"""The rollout engines of a run, as one: a pool of replicas, each of them the engine of one rank."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from verl_core.config.effective import ranks_per_engine
from verl_core.config.errors import RunError
from verl_core.config.schema import RlxConfig
from verl_core.controller.executors import WorkerGroup
from verl_core.rollout.child.errors import EngineLost
from verl_core.rollout.parts import Interrupted, OnParts
from verl_core.rollout.pool import ReplicaPool
from verl_core.rollout.protocol import Completion, PauseMode, TokenRequest
from verl_core.rollout.restarts import RestartBudget

_ANY_THREAD = ("abort", "pause", "resume")  # what an engine takes while another thread is in it


class Rollout:
    """Engine number i is that of rank i of `group`, or of the i-th span of ranks that share one, whose first rank has
    it; `trainer` has the ranks that push weights. To be made on the event loop on which it is used. The pool works in
    threads, so that loop stays free; its calls to ranks go through it."""

    def __init__(self, group: WorkerGroup, trainer: WorkerGroup, config: RlxConfig):
        self.group, self.trainer = group, trainer
        self._apart = trainer is not group  # nobody else wants the engines' memory: they never sleep
        self._aside = config.weights.type != "inplace"  # the engines are not in their ranks' own processes
        self._loop = asyncio.get_running_loop()
        self._version = 0
        self._known: set[int] = set()
        budget = RestartBudget(config.rollout.restarts)
        self._span = ranks_per_engine(config)
        self._pool = ReplicaPool(self._start, group.size // self._span, refresh=self._refresh, budget=budget)

    @property
    def restarts(self) -> int:
        """Engines started again so far, failed starts included."""
        return self._pool.restarts

    async def generate(self, requests: Sequence[TokenRequest]) -> list[Completion]:
        """Completions in the order of the requests. RunError when no engine is left."""
        return await asyncio.to_thread(self._pool.generate, requests)

    async def dtypes(self) -> tuple[str, str]:
        """What the actor computes in and what the engines generate in, e.g. bfloat16, float32."""
        return (await self.trainer.call("dtypes"))[0]

    async def push_weights(self, version: int) -> None:
        """Gives the engines the trainer's present weights. One that is lost, or was, gets them when it is back."""
        await asyncio.to_thread(self._pool.together, lambda running: self._push(version, sorted(running)))

    async def sleep(self) -> None:
        """Nothing is generated until `push_weights` and `wake`. Engines that are started again meanwhile wait for these
        weights: between two optimizer steps the actor's are those of no version."""
        await asyncio.to_thread(self._pool.hold if self._apart else self._pool.sleep)

    async def wake(self) -> None:
        """Engines that were lost while the trainer had their memory are started now."""
        if not self._apart:
            await asyncio.to_thread(self._pool.wake)

    async def trim(self) -> None:
        """After a generation that was larger than those of training."""
        await asyncio.to_thread(self._pool.each, RankEngine.trim)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.close)

    # --- in the pool's threads --------------------------------------------------------------------------------------

    def _start(self, number: int) -> RankEngine:
        """The rank has made its engine; when it is asked for again that one is lost, and the rank makes another."""
        engine = RankEngine(number, lambda *call: self._one(number, *call))
        if number in self._known:
            for rank in range(number * self._span, (number + 1) * self._span):
                self._wait(self.group.one(rank, "free_memory", aside=self._aside))
            self._one(number, "restart_engine")
        self._known.add(number)
        return engine

    def _refresh(self, engine: RankEngine) -> None:
        for error in self._push(self._version, [engine.number]).values():
            raise error

    def _push(self, version: int, engines: list[int]) -> dict[int, EngineLost]:
        """On all ranks of the trainer, which may have to gather for one engine. Returns those that were lost."""
        self._version = version
        ranks = [number * self._span for number in engines]
        told = self._wait(self.trainer.call("push_weights", version, ranks)) if engines else []
        return {rank // self._span: error for lost in told for rank, error in lost.items()}

    def _one(self, number: int, method: str, *args: Any) -> Any:
        aside = self._aside or method == "close_engine" or (method == "tell_engine" and args[0] in _ANY_THREAD)
        return self._wait(self.group.one(number * self._span, method, *args, aside=aside))

    def _wait[T](self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


class NoRollout:
    """In the place of a `Rollout` where nothing is generated."""

    restarts = 0

    async def push_weights(self, version: int) -> None:
        """Nobody wants them."""

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def trim(self) -> None: ...


class RankEngine:
    """The engine of a rank, as the pool's replica. Methods block; a lost engine raises EngineLost.

    Args:
        number: of the rank.
        call: calls a method of the rank's Worker.
    """

    def __init__(self, number: int, call: Callable[..., Any]):
        self.number, self._call = number, call

    def generate(self, requests: Sequence[TokenRequest], on_parts: OnParts | None = None) -> list[Completion]:
        """`on_parts` hears of tokens only when the engine is lost: then of all that it had told."""
        answer = self._call("generate", requests)
        if isinstance(answer, Interrupted):
            if on_parts is not None:
                on_parts(answer.parts)
            raise answer.error
        return answer

    def abort(self, request_ids: Iterable[str]) -> None:
        self._call("tell_engine", "abort", list(request_ids))

    def pause(self, mode: PauseMode) -> None:
        self._call("tell_engine", "pause", mode)

    def resume(self) -> None:
        self._call("tell_engine", "resume")

    def sleep(self) -> None:
        self._call("tell_engine", "sleep")

    def wake(self) -> None:
        self._call("tell_engine", "wake")

    def trim(self) -> None:
        self._call("trim")

    def close(self) -> None:
        """Also where the rank is gone, or stands in a collective that will never end."""
        with contextlib.suppress(RunError):
            self._call("close_engine")
