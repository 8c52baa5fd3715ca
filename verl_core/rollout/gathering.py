"""Gathers what many concurrent tasks ask into few calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Gathering[Question, Answer]:
    """`await gathering.ask(question)` from any number of tasks on one event loop.

    What is asked together (before the event loop runs out of work that asks more) travels as one call, in the order in
    which it was asked. One call is in flight at a time; what arrives meanwhile forms the next.
    An error of a call reaches every waiter of that call and no other.

    Args:
        call: hands questions on and returns their answers in the same order.
    """

    def __init__(self, call: Callable[[list[Question]], Awaitable[list[Answer]]]):
        self._call = call
        self._pending: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer:
        """The answer to this question; raises what the call raised."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending.append((question, future))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return await future

    async def _send(self) -> None:
        try:
            while self._pending:
                await self._settled()
                batch, self._pending = self._pending, []
                batch = [(question, future) for question, future in batch if not future.cancelled()]
                if batch:
                    await self._send_one(batch)
        finally:
            self._sender = None
            for _, future in self._pending:  # left over only where this task was cancelled: nobody would answer them
                future.cancel()
            self._pending.clear()

    async def _settled(self) -> None:
        """Returns after a turn of the event loop in which nothing was asked."""
        seen = -1
        while seen != len(self._pending):
            seen = len(self._pending)
            await asyncio.sleep(0)

    async def _send_one(self, batch: list[tuple[Question, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._call([question for question, _ in batch])
            pairs = list(zip(batch, answers, strict=True))
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in pairs:
            if not future.done():
                future.set_result(answer)
