"""A sender's buckets on their way to N receivers: bytes by a process group, descriptions by a mailbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from verl_core.config.errors import RunError
from verl_core.weights.buckets import Bucket, Item, buffers, pack
from verl_core.weights.group import Group
from verl_core.weights.mailbox import Mailbox
from verl_core.weights.sending import answers_of


class Outgoing:
    """The sender's end.

    Args:
        receivers: how many there are.
        device: where the buckets lie: CUDA (NCCL) or the CPU (gloo).
        bucket_bytes: size of each of the two buckets.
        address: what receivers know this machine by.
        timeout_s: longest silence of a receiver.
    """

    def __init__(self, receivers: int, device: torch.device, bucket_bytes: int, address: str, timeout_s: float):
        self.receivers, self.device, self.bucket_bytes = receivers, device, bucket_bytes
        self.timeout_s = timeout_s
        self.mail = Mailbox.host(address, timeout_s)
        self.place = {"address": address, "port": self.mail.port, "timeout_s": timeout_s}
        self._group: Group | None = None

    def join(self, opened: Sequence[Future[dict[str, Any]]]) -> None:
        """Builds the group with the receivers. `opened`: their answers to being told of it, on the rank that told them;
        the first error among these is raised without waiting for a receiver that will not come."""
        door = self.mail.twin()
        for answer in opened:
            answer.add_done_callback(lambda done: door.post("hello", {"failed": True}) if done.exception() else None)
        for _ in range(self.receivers):
            if "failed" in self.mail.read("hello"):
                answers_of(opened, self.timeout_s)
                raise RunError("an engine could not be reached for its weights", "look at the log of the first rank")
        self._group = Group(self.mail.twin().store, 0, self.receivers + 1, self.device, self.timeout_s)

    def invitation(self, receiver: int) -> dict[str, Any]:
        """What `Incoming` needs on the receiver of this index."""
        return {**self.place, "rank": receiver + 1, "size": self.receivers + 1, "bucket_bytes": self.bucket_bytes}

    def send(self, stream: Iterable[Item], end: Callable[[], dict[str, Any]] = dict) -> int:
        """Sends everything and then `end()`, a JSON object; returns the bytes of the buckets. One bucket is packed
        while the other travels."""
        assert self._group is not None
        works: dict[int, Work] = {}
        total = 0

        def free(buffer: int) -> None:
            if buffer in works:
                works.pop(buffer).wait()

        for bucket in pack(stream, buffers(self.device, self.bucket_bytes), free):
            self._tell(bucket.describe())
            works[bucket.buffer] = self._group.broadcast(bucket.data)
            total += bucket.data.numel()
        for work in works.values():
            work.wait()
        self._tell({"end": end()})
        return total

    def fail(self, why: str) -> None:
        """Tells the receivers to wait for nothing more."""
        with suppress(Exception):  # the sender's own error is the one to report
            self._tell({"error": why})

    def abort(self) -> None:
        if self._group is not None:
            self._group.abort()

    def _tell(self, message: dict[str, Any]) -> None:
        for rank in range(1, self.receivers + 1):
            self.mail.post(f"to {rank}", message)


class Incoming:
    """A receiver's end; made while the sender is in `Outgoing.join`."""

    def __init__(self, device: torch.device, *, address: str, port: int, timeout_s: float, rank: int, size: int,
                 bucket_bytes: int):  # fmt: skip
        self.device, self.bucket_bytes = device, bucket_bytes
        self._box = f"to {rank}"
        self._mail = Mailbox.join(address, port, timeout_s)
        self._mail.post("hello", {})
        self._group = Group(self._mail.twin().store, rank, size, device, timeout_s)
        self.end: dict[str, Any] = {}

    def buckets(self) -> Iterator[Bucket]:
        """The sender's buckets; `end` is set after the last. The next one arrives while one is used."""
        space = buffers(self.device, self.bucket_bytes)
        coming = self._receive(space)
        while coming is not None:
            bucket, work = coming
            work.wait()
            coming = self._receive(space)
            yield bucket

    def _receive(self, space: list[Tensor]) -> tuple[Bucket, Work] | None:
        message = self._mail.read(self._box)
        if "error" in message:
            raise RunError(f"the trainer stopped sending weights: {message['error']}")
        if "end" in message:
            self.end = message["end"]
            return None
        bucket = Bucket.described(message, space)
        return bucket, self._group.broadcast(bucket.data)

    def close(self) -> None:
        self._group.abort()
