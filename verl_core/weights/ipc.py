"""Weights to an engine in another process on the same device: two buckets of shared memory that take turns. Their
handles travel once, when the transport is made; then only descriptions do, and a receipt for each bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from verl_core.config.errors import RunError
from verl_core.rollout.child.shared_memory import SharedBuffer, opened
from verl_core.training.protocol import TrainEngine
from verl_core.weights.buckets import BUCKET_BYTES, Bucket, cast, pack, unpack
from verl_core.weights.hashing import Hasher
from verl_core.weights.inbox import Room
from verl_core.weights.mailbox import Mailbox
from verl_core.weights.sending import Clock, Delivery, Sent, Tell, answers_of, drained


class IpcSender:
    """Each rank of the trainer serves the engine on its own device. Of a sharded trainer all gather, tensor by tensor.

    Args:
        tell: the engine on this rank's device; None where there is none.
        device, dtype, bucket_bytes, verify, timeout_s: as of BroadcastSender.
    """

    def __init__(
        self,
        tell: Tell | None,
        *,
        device: torch.device | str,
        dtype: torch.dtype | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        verify: bool = False,
        timeout_s: float = 300.0,
    ):
        self._tell, self._device, self._dtype = tell, torch.device(device), dtype
        self._verify, self._timeout_s = verify, timeout_s
        self._buffers: list[SharedBuffer] = []
        if tell is not None:
            self._mail = Mailbox.host("127.0.0.1", timeout_s)
            self._alarm = self._mail.twin()
            self._buffers = [SharedBuffer(self._device, bucket_bytes) for _ in range(2)]
            handles = [buffer.handle for buffer in self._buffers]
            try:
                answer = tell("weights_open", type="ipc", handles=handles, port=self._mail.port, timeout_s=timeout_s)
                answers_of([answer], timeout_s)
            finally:
                for buffer in self._buffers:
                    buffer.forget()

    def send(self, engine: TrainEngine, version: int) -> Sent:
        clock = Clock()
        with drained(cast(engine.named_weights(), self._dtype)) as stream:
            if self._tell is None:
                return Sent(version)
            alarm = lambda: self._alarm.post("receipt", {"failed": True})  # noqa: E731
            delivery = Delivery([self._tell], {"version": version, "verify": self._verify}, alarm)
            try:
                sent = self._post(stream)
                delivery.finish(self._timeout_s)
            except Exception as error:
                self._alarm.post("bucket", {"error": str(error)})
                raise delivery.blame(error) from error
        return Sent(version, sent, clock.seconds)

    def _post(self, stream: Iterator[tuple[str, Tensor]]) -> int:
        hasher, lent, total = Hasher(), set[int](), 0

        def free(buffer: int) -> None:
            if buffer in lent:
                self._receipt()
                lent.discard(buffer)

        spaces = [buffer.tensor for buffer in self._buffers]
        for bucket in pack(hasher.watch(stream) if self._verify else stream, spaces, free):
            self._wait_for_device()
            self._mail.post("bucket", bucket.describe())
            lent.add(bucket.buffer)
            total += bucket.data.numel()
        self._mail.post("bucket", {"end": hasher.hashes()})
        for _ in lent:
            self._receipt()
        return total

    def _receipt(self) -> None:
        if "failed" in self._mail.read("receipt"):
            raise RunError("the engine stopped taking weights")

    def _wait_for_device(self) -> None:
        """Another process does not see this one's stream."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def close(self) -> None:
        self._buffers.clear()


class IpcReceiver:
    def __init__(self, device: torch.device, handles: list[dict[str, Any]], port: int, timeout_s: float):
        self._device = device
        self._spaces = [opened(handle, device) for handle in handles]
        self._mail = Mailbox.join("127.0.0.1", port, timeout_s)
        self.hashes: dict[str, int] = {}

    def stream(self, message: dict[str, Any], room: Room | None) -> Iterator[tuple[str, Tensor]]:
        self.hashes = {}
        for piece, tensor in unpack(self._buckets(), room):
            yield piece.name, tensor

    def _buckets(self) -> Iterator[Bucket]:
        while "end" not in (message := self._mail.read("bucket")):
            if "error" in message:
                raise RunError(f"the trainer stopped sending weights: {message['error']}")
            yield Bucket.described(message, self._spaces)
            if self._device.type == "cuda":  # what the engine has queued still reads the bucket
                torch.cuda.synchronize(self._device)
            self._mail.post("receipt", {})
        self.hashes = message["end"]

    def close(self) -> None:
        self._spaces.clear()
