"""Tensors as flat buckets of bytes, and back.

A bucket has a fixed size and travels in one piece, with a description of what lies in it. A tensor that fits a bucket
lies in one; a larger one is cut. Two buckets take turns: one is filled while the other is on its way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from verl_core.config.errors import RunError

BUCKET_BYTES = 256 * 2**20
_ALIGN = 64  # bytes: any dtype can be viewed there, and copies stay vectorised

Item = tuple[str, Tensor] | tuple[str, Tensor, dict[str, Any]]  # name, tensor, and a note that travels with it


@dataclass(frozen=True)
class Piece:
    """`size` bytes of a tensor, from its byte `start`, at `offset` in a bucket."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    offset: int
    size: int
    note: dict[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize


@dataclass
class Bucket:
    """`data`: the used bytes of buffer `buffer`."""

    buffer: int
    data: Tensor
    pieces: list[Piece]

    def describe(self) -> dict[str, Any]:
        """The bucket without its bytes, as JSON."""
        pieces = [vars(piece) for piece in self.pieces]
        return {"buffer": self.buffer, "used": self.data.numel(), "pieces": pieces}

    @classmethod
    def described(cls, description: dict[str, Any], buffers: Sequence[Tensor]) -> Bucket:
        """The inverse: the bucket whose bytes lie (or will lie) in the buffer that the description names."""
        pieces = [Piece(**{**piece, "shape": tuple(piece["shape"])}) for piece in description["pieces"]]
        index = description["buffer"]
        return cls(index, buffers[index][: description["used"]], pieces)


@cache
def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def as_bytes(tensor: Tensor) -> Tensor:
    """The tensor's bytes [n]; a view where it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def cast(stream: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Floating tensors in `dtype`, the engine's; None leaves them."""
    for name, tensor in stream:
        yield name, tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor


def pack(
    stream: Iterable[Item], buffers: Sequence[Tensor], free: Callable[[int], None] = lambda buffer: None
) -> Iterator[Bucket]:
    """Fills the buffers in turn.

    Args:
        stream: tensors on any device; each is read before the next is asked for.
        buffers: flat uint8 tensors of one size.
        free: called before buffer i is written; returns when nobody reads it any more.
    """
    size, turn, used = buffers[0].numel(), 0, 0
    pieces: list[Piece] = []
    for name, tensor, *note in stream:
        raw, start = as_bytes(tensor), 0
        dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
        while True:
            offset = -(-used // _ALIGN) * _ALIGN
            left = raw.numel() - start
            if offset >= size or (left > size - offset and raw.numel() <= size):  # next bucket
                yield Bucket(turn, buffers[turn][:used], pieces)
                turn, used, pieces = (turn + 1) % len(buffers), 0, []
                continue
            if not pieces:
                free(turn)
            taken = min(left, size - offset)
            part = raw if taken == raw.numel() else raw[start : start + taken]
            buffers[turn][offset : offset + taken].copy_(part, non_blocking=True)
            pieces.append(Piece(name, dtype, shape, start, offset, taken, note[0] if note else {}))
            start, used = start + taken, offset + taken
            if start == raw.numel():
                break
    if pieces:
        yield Bucket(turn, buffers[turn][:used], pieces)


def unpack(buckets: Iterable[Bucket], room: Callable[[Piece], Tensor] | None = None) -> Iterator[tuple[Piece, Tensor]]:
    """The tensors, each with a piece that has its name and note.

    Without `room` a tensor that was not cut is a view of its bucket, valid until the next one is asked for; a cut one
    is put together in memory of its own. With `room` every tensor is copied into what `room(piece)` gives for it.

    Raises:
        RunError: the buckets end within a tensor.
    """
    whole: Tensor | None = None
    for bucket in buckets:
        for piece in bucket.pieces:
            raw = bucket.data[piece.offset : piece.offset + piece.size]
            dtype = dtype_of(piece.dtype)
            if room is None and piece.size == piece.total:
                yield piece, raw.view(dtype).view(piece.shape)
                continue
            if piece.start == 0:
                whole = room(piece) if room else torch.empty(piece.shape, dtype=dtype, device=bucket.data.device)
            assert whole is not None
            as_bytes(whole)[piece.start : piece.start + piece.size].copy_(raw, non_blocking=True)
            if piece.start + piece.size == piece.total:
                yield piece, whole
                whole = None
    if whole is not None:
        raise RunError("the buckets of a weight transfer end within a tensor")


def buffers(device: torch.device, size: int, count: int = 2) -> list[Tensor]:
    return [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(count)]
