"""New weights on their way into vLLM's model: a stream for one process, flat buckets for several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BUCKET_BYTES = 256 * 2**20
_ALIGN = 16  # bytes; a view of a flat buffer as another dtype needs it


@dataclass
class Packed:
    """Tensors in one flat buffer. `open` and its arguments give the buffer in another process: the bytes themselves
    on the CPU, a CUDA IPC handle on a GPU."""

    open: Callable[..., Tensor]
    args: tuple[Any, ...]
    entries: list[tuple[str, torch.dtype, torch.Size, int]] = field(default_factory=list)  # the last: bytes before it

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        flat = self.open(*self.args)
        for name, dtype, shape, start in self.entries:
            yield name, flat[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)


def buckets(stream: Iterable[tuple[str, Tensor]], size: int = BUCKET_BYTES) -> Iterator[Packed]:
    """The stream in buckets of `size` bytes (one of its own for a larger tensor). All use the same buffer: a bucket is
    valid until the next is asked for."""
    flat = torch.empty(0, dtype=torch.uint8)
    entries: list[tuple[str, torch.dtype, torch.Size, int]] = []
    used = 0
    for name, tensor in stream:
        if entries and used + tensor.nbytes > flat.numel():
            yield _packed(flat, used, entries)
            entries, used = [], 0
        if tensor.nbytes > flat.numel() or flat.device != tensor.device:
            flat = torch.empty(max(size, tensor.nbytes), dtype=torch.uint8, device=tensor.device)
        flat[used : used + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        entries.append((name, tensor.dtype, tensor.shape, used))
        used += -(-tensor.nbytes // _ALIGN) * _ALIGN
    if entries:
        yield _packed(flat, used, entries)


def _packed(flat: Tensor, used: int, entries: list[tuple[str, torch.dtype, torch.Size, int]]) -> Packed:
    if flat.is_cuda:
        from torch.multiprocessing.reductions import reduce_tensor

        torch.cuda.synchronize(flat.device)
        rebuild, args = reduce_tensor(flat)
        return Packed(rebuild, args, entries)
    return Packed(_itself, (flat[:used].clone(),), entries)


def _itself(flat: Tensor) -> Tensor:
    return flat
