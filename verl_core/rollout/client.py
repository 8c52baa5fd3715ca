"""Gathers the requests of many concurrent agent loops into few engine calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from verl_core.rollout.protocol import Completion, TokenRequest


class RolloutClient:
    """`await client.generate(request)` from any number of loops on one event loop.

    Requests issued together (before the event loop runs out of work that issues more) travel as one call, in the order
    in which they were issued. One call is in flight at a time; what arrives meanwhile forms the next.
    An error of a call reaches every waiter of that call and no other.

    Args:
        call: hands requests to the engine and returns their completions in the same order.
    """

    def __init__(self, call: Callable[[list[TokenRequest]], Awaitable[list[Completion]]]):
        self._call = call
        self._pending: list[tuple[TokenRequest, asyncio.Future[Completion]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def generate(self, request: TokenRequest) -> Completion:
        """The completion of this request; raises what the engine call raised."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._pending.append((request, future))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return await future

    async def _send(self) -> None:
        try:
            while self._pending:
                await self._settled()
                batch, self._pending = self._pending, []
                batch = [(request, future) for request, future in batch if not future.cancelled()]
                if batch:
                    await self._send_one(batch)
        finally:
            self._sender = None
            for _, future in self._pending:  # left over only where this task was cancelled: nobody would answer them
                future.cancel()
            self._pending.clear()

    async def _settled(self) -> None:
        """Returns after a turn of the event loop in which nothing was issued."""
        seen = -1
        while seen != len(self._pending):
            seen = len(self._pending)
            await asyncio.sleep(0)

    async def _send_one(self, batch: list[tuple[TokenRequest, asyncio.Future[Completion]]]) -> None:
        try:
            completions = await self._call([request for request, _ in batch])
            pairs = list(zip(batch, completions, strict=True))
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), completion in pairs:
            if not future.done():
                future.set_result(completion)
