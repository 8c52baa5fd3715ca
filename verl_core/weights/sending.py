"""What the senders of every transport have in common: how receivers are told, and how one transfer ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from verl_core.config.errors import RunError
from verl_core.training.protocol import TrainEngine

Tell = Callable[..., "Future[dict[str, Any]]"]
"""`tell(method, **message)` calls a method of a receiver's `Inbox`; the future has its answer, or its error. Returns at
once. The message is JSON."""


@dataclass(frozen=True)
class Sent:
    """One transfer as its sender saw it: bytes put on the way by this rank, and seconds until every receiver had them.
    `changed` of `elements` were sent as a delta or would have been (delta only)."""

    version: int
    bytes: int = 0
    seconds: float = 0.0
    whole: bool = True
    changed: int = 0
    elements: int = 0


class Sender(Protocol):
    """Made on every rank of the trainer, and called on all of them in the same order."""

    def send(self, engine: TrainEngine, version: int) -> Sent:
        """Returns when every receiver samples with `version`. Raises RunError when one did not take it; the transport
        is then made anew."""
        ...

    def close(self) -> None: ...


class Delivery:
    """One version on its way to all receivers.

    Args:
        message: what `Inbox.weights_take` is told.
        stop: called once from another thread when a receiver fails, to end what waits for it.
    """

    def __init__(self, tells: Sequence[Tell], message: dict[str, Any], stop: Callable[[], None]):
        self._answers = [tell("weights_take", **message) for tell in tells]
        for answer in self._answers:
            answer.add_done_callback(lambda done: stop() if done.exception() else None)

    def finish(self, timeout_s: float) -> None:
        """Raises the first failure of a receiver, or RunError when one is silent."""
        answers_of(self._answers, timeout_s)

    def blame(self, error: Exception) -> BaseException:
        """A receiver's error where there is one, because a sender's is often its echo."""
        done, _ = wait(self._answers, timeout=2, return_when=FIRST_EXCEPTION)
        return next((e for answer in done if (e := answer.exception()) is not None), error)


def answers_of(answers: Sequence[Future[dict[str, Any]]], timeout_s: float) -> list[dict[str, Any]]:
    done, silent = wait(answers, timeout_s, FIRST_EXCEPTION)
    failed = next((answer for answer in done if answer.exception()), None)
    if failed is None and silent:
        raise RunError(
            f"{len(silent)} of {len(answers)} engines did not answer about new weights within {timeout_s:g} s",
            "look at the engines' logs",
        )
    return [failed.result()] if failed else [answer.result() for answer in answers]


@contextmanager
def drained(stream: Iterator[tuple[str, Tensor]]) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """Reads `stream` to its end also when the body fails: gathering a tensor needs all ranks of the trainer, and the
    others go on."""
    try:
        yield stream
    finally:
        for _ in stream:
            pass


class Clock:
    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start
