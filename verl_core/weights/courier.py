"""The trainer's side of the transports between pools: makes the sender, and makes it anew when the engines change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from verl_core.config.errors import RunError
from verl_core.config.schema import WeightsConfig
from verl_core.rollout.child.errors import EngineLost
from verl_core.training.protocol import TrainEngine
from verl_core.weights.agreement import of_all_ranks
from verl_core.weights.sending import Sender, Tell

ANSWER_S = 60.0
"""Longest that an engine may take to say whether it has a transport, seconds."""


class Courier:
    """Made on every rank of the trainer, and called on all of them in the same order, over torch's default group.

    A sender and its group are kept from push to push; they are made anew for other engines than last time, for one that
    was started again, and after a failure.

    Args:
        settings: weights.type is broadcast, delta or disk.
        tells: the engines; empty on every rank but the first.
        device: where this rank's weights lie.
        dtype: the engines'.
        address: what the engines know this rank's machine by.
    """

    def __init__(
        self,
        settings: WeightsConfig,
        tells: Sequence[Tell],
        *,
        device: torch.device,
        dtype: torch.dtype,
        address: str = "127.0.0.1",
    ):
        self._settings, self._tells = settings, tuple(tells)
        self._device, self._dtype, self._address = device, dtype, address
        self._sender: Sender | None = None
        self._served: list[int] = []

    def push(self, trainer: TrainEngine, version: int, engines: Sequence[int]) -> dict[int, EngineLost]:
        """Gives these engines the trainer's present weights as `version`; returns those that were lost.

        Where a transfer fails because an engine ended, the others get all of it again. Raises RunError on all ranks
        when it fails otherwise.
        """
        lost: dict[int, EngineLost] = {}
        failure: BaseException | None = None
        while True:
            gone, renewed = of_all_ranks(self._look([i for i in engines if i not in lost]))[0]
            if failure is not None and not gone:
                raise failure
            lost |= gone
            served = [i for i in engines if i not in lost]
            if not served:
                return lost
            failure = self._try(trainer, version, served, renewed)
            errors = of_all_ranks(str(failure) if failure else None)
            if not any(errors):
                return lost
            self.close()
            failure = failure or RunError(f"another rank could not send weights: {next(filter(None, errors))}")

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _look(self, engines: Sequence[int]) -> tuple[dict[int, EngineLost], bool]:
        """On the first rank: which of the engines are lost, and whether another lacks this sender's transport. An
        engine that cannot say is one of these: what is wrong with it comes out when the transport is opened."""
        if not self._tells:
            return {}, False
        gone: dict[int, EngineLost] = {}
        renewed = False
        for i, answer in [(i, self._tells[i]("weights_opened")) for i in engines]:
            try:
                renewed |= not answer.result(ANSWER_S)["open"]
            except EngineLost as error:
                gone[i] = error
            except Exception:
                renewed = True
        return gone, renewed

    def _try(self, trainer: TrainEngine, version: int, engines: Sequence[int], renewed: bool) -> Exception | None:
        try:
            if self._sender is None or renewed or self._served != engines:
                self.close()
                tells = [self._tells[i] for i in engines] if self._tells else []
                self._sender, self._served = self._together(lambda: self._made(tells)), list(engines)
            self._sender.send(trainer, version)
        except Exception as error:
            return error
        return None

    def _made(self, tells: Sequence[Tell]) -> Sender:
        w, size = self._settings, self._settings.bucket_mb * 2**20
        common: dict[str, Any] = {"dtype": self._dtype, "verify": w.verify}
        near: dict[str, Any] = {"device": self._device, "bucket_bytes": size, "address": self._address}
        match w.type:
            case "broadcast":
                from verl_core.weights.broadcast import BroadcastSender

                return BroadcastSender(tells, **common, **near)
            case "delta":
                from verl_core.weights.delta.sender import DeltaSender

                return DeltaSender(tells, **common, **near)
            case _:
                from verl_core.weights.disk import DiskSender

                assert w.folder is not None
                return DiskSender(tells, folder=w.folder, file_bytes=size, **common)

    def _together(self, make: Callable[[], Sender]) -> Sender:
        """`make()` on all ranks. Where it fails on one it fails on all, so that none waits in a gather for another."""
        made: Sender | None = None
        error: Exception | None = None
        try:
            made = make()
        except Exception as raised:
            error = raised
        errors = of_all_ranks(str(error) if error else None)
        if made is not None and not any(errors):
            return made
        if made is not None:
            made.close()
        raise error or RunError(f"another rank could not reach the engines: {next(filter(None, errors))}")
