"""Weights from the trainer's first rank to all engines at once, in buckets: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from verl_core.training.protocol import TrainEngine
from verl_core.weights.buckets import BUCKET_BYTES, cast, unpack
from verl_core.weights.hashing import Hasher
from verl_core.weights.inbox import Room
from verl_core.weights.link import Incoming, Outgoing
from verl_core.weights.sending import Clock, Delivery, Sent, Tell, answers_of, drained


class BroadcastSender:
    """Builds its group when it is made, and keeps it. Of a sharded trainer all ranks gather, a tensor at a time.

    Args:
        tells: the engines; empty on every rank of the trainer but the first.
        device: where this rank's weights lie, and its two buckets.
        dtype: the engines' dtype, to which floating weights are cast before they travel; None: as they are.
        bucket_bytes: size of a bucket; two are in use during a transfer.
        verify: hashes of all tensors travel too, and the engines compare.
        address: what the engines know this machine by.
        timeout_s: longest silence of an engine before a transfer fails.
    """

    def __init__(
        self,
        tells: Sequence[Tell],
        *,
        device: torch.device | str,
        dtype: torch.dtype | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        verify: bool = False,
        address: str = "127.0.0.1",
        timeout_s: float = 300.0,
    ):
        self._tells, self._dtype, self._verify, self._timeout_s = tells, dtype, verify, timeout_s
        self._link: Outgoing | None = None
        if tells:
            self._link = Outgoing(len(tells), torch.device(device), bucket_bytes, address, timeout_s)
            opened = [
                tell("weights_open", type="broadcast", link=self._link.invitation(i)) for i, tell in enumerate(tells)
            ]
            self._link.join(opened)
            answers_of(opened, timeout_s)

    def send(self, engine: TrainEngine, version: int) -> Sent:
        clock = Clock()
        with drained(cast(engine.named_weights(), self._dtype)) as stream:
            if self._link is None:
                return Sent(version)
            delivery = Delivery(self._tells, {"version": version, "verify": self._verify}, self._link.abort)
            hasher = Hasher()
            try:
                sent = self._link.send(hasher.watch(stream) if self._verify else stream, hasher.hashes)
                delivery.finish(self._timeout_s)
            except Exception as error:
                self._link.fail(str(error))
                raise delivery.blame(error) from error
        return Sent(version, sent, clock.seconds)

    def close(self) -> None:
        if self._link is not None:
            self._link.abort()


class BroadcastReceiver:
    def __init__(self, device: torch.device, link: dict[str, Any]):
        self._link = Incoming(device, **link)
        self.hashes: dict[str, int] = {}

    def stream(self, message: dict[str, Any], room: Room | None) -> Iterator[tuple[str, Tensor]]:
        self.hashes = {}
        for piece, tensor in unpack(self._link.buckets(), room):
            yield piece.name, tensor
        self.hashes = self._link.end

    def close(self) -> None:
        self._link.close()
