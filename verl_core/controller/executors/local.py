"""One rank in this process. Calls run in one worker thread, so the controller's loop stays free and torch always sees
the same thread; set RLX_LOCAL_THREAD=0 to run them in the loop itself, where a debugger stops as usual."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from verl_core.config.errors import UserError
from verl_core.config.schema import RlxConfig
from verl_core.controller.executors.base import Placement, WorkerGroup
from verl_core.controller.out_of_memory import out_of_memory
from verl_core.controller.worker import Worker
from verl_core.weights.sending import Tell


class LocalGroup:
    size = 1

    def __init__(self, worker: Worker):
        self.worker = worker
        self._thread = ThreadPoolExecutor(1, "rank0") if os.environ.get("RLX_LOCAL_THREAD", "1") != "0" else None

    async def call(self, method: str, *args: Any) -> list[Any]:
        bound = getattr(self.worker, method)
        try:
            if self._thread is None:
                return [bound(*args)]
            return [await asyncio.get_running_loop().run_in_executor(self._thread, bound, *args)]
        except (MemoryError, RuntimeError) as error:
            if told := out_of_memory(error):
                raise told from error
            raise

    async def scatter(self, method: str, arguments: Sequence[tuple]) -> list[Any]:
        return await self.call(method, *arguments[0])

    async def one(self, rank: int, method: str, *args: Any, aside: bool = False) -> Any:
        if aside:
            return await _aside(getattr(self.worker, method), *args)
        return (await self.call(method, *args))[0]

    def tells(self) -> list[Tell]:
        """None: there is no other pool."""
        return []

    async def close(self) -> None:
        await self.call("close")
        if self._thread is not None:
            self._thread.shutdown()


async def _aside[T](do: Callable[..., T], *args: Any) -> T:
    """In a thread that nobody waits for at the end of the process, where an engine may just be starting."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(do(*args))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await asyncio.wrap_future(done)


class LocalExecutor:
    def __init__(self) -> None:
        self._groups: list[LocalGroup] = []

    async def start(
        self, config: RlxConfig, plan: Sequence[Placement], model_folder: str, blank: bool = False
    ) -> dict[str, WorkerGroup]:
        if len(plan) != 1 or plan[0].ranks != 1:
            sizes = ", ".join(f"{p.pool}: {p.ranks}" for p in plan)
            raise UserError(
                f"cluster.executor=local runs one rank on one pool, the pools are {sizes}", "cluster.executor=ray"
            )
        group = LocalGroup(Worker(0, 1, config, plan[0].roles, model_folder, blank))
        self._groups.append(group)
        await group.call("start", None)
        return {plan[0].pool: group}

    async def close(self) -> None:
        while self._groups:
            await self._groups.pop().close()
