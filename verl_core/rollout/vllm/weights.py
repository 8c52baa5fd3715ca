"""New weights on their way to the workers of an engine that spans several devices: flat buckets in memory that all of
them see. An engine of one worker needs none of this, it is handed the tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_core.rollout.child.shared_memory import SharedBuffer, opened

BUCKET_BYTES = 256 * 2**20
_ALIGN = 16  # bytes; a view of a flat buffer as another dtype needs it

Entry = tuple[str, torch.dtype, torch.Size, int]
"""Name, dtype, shape, and where in the buffer, bytes."""


@dataclass(frozen=True)
class Packed:
    """What travels to the workers: `SharedBuffer.handle` of the buffer, and what lies in it."""

    handle: dict[str, Any]
    entries: list[Entry]

    def tensors(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The tensors in the opened buffer."""
        for name, dtype, shape, start in self.entries:
            yield name, flat[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)


class Packer:
    """Packs a stream into one buffer of `size` bytes again and again (a larger one for a tensor that does not fit)."""

    def __init__(self, size: int = BUCKET_BYTES):
        self._size = size
        self._buffer: SharedBuffer | None = None

    def buckets(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[Packed]:
        """A bucket is valid until the next is asked for."""
        entries: list[Entry] = []
        used = 0
        for name, tensor in stream:
            if entries and used + tensor.nbytes > self._room():
                yield self._packed(entries)
                entries, used = [], 0
            flat = self._flat(tensor)
            flat[used : used + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
            entries.append((name, tensor.dtype, tensor.shape, used))
            used += -(-tensor.nbytes // _ALIGN) * _ALIGN
        if entries:
            yield self._packed(entries)

    def _room(self) -> int:
        return 0 if self._buffer is None else self._buffer.tensor.numel()

    def _flat(self, tensor: Tensor) -> Tensor:
        if self._buffer is None or self._room() < tensor.nbytes or self._buffer.tensor.device != tensor.device:
            self._buffer = None  # the old one goes before the new one comes
            self._buffer = SharedBuffer(tensor.device, max(self._size, tensor.nbytes))
        return self._buffer.tensor

    def _packed(self, entries: list[Entry]) -> Packed:
        assert self._buffer is not None
        if self._buffer.tensor.is_cuda:  # a worker does not see this process's stream
            torch.cuda.current_stream(self._buffer.tensor.device).synchronize()
        return Packed(self._buffer.handle, entries)


class Reader:
    """A worker's end: opens each buffer once, on whichever GPU it lies; reading from it copies to the worker's own."""

    def __init__(self) -> None:
        self._handle: dict[str, Any] | None = None
        self._flat: Tensor

    def tensors(self, packed: Packed) -> Iterator[tuple[str, Tensor]]:
        if packed.handle != self._handle:
            self._flat = opened(packed.handle, _device_of(packed.handle))
            self._handle = packed.handle
        return packed.tensors(self._flat)


def _device_of(handle: dict[str, Any]) -> torch.device:
    """The GPU that a handle belongs to, by its number here; looking for it makes no context on the others."""
    if "path" in handle:
        return torch.device("cpu")
    of = {str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())}
    return torch.device("cuda", of[handle["uuid"]])
