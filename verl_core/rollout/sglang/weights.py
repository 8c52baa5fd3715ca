"""New weights on their way into SGLang's schedulers: flat buckets, one copy of the handle for each rank."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

BUCKET_BYTES = 256 * 2**20
LOADER = "verl_core.rollout.sglang.weights.load"
_ALIGN = 16  # bytes; a view of a flat buffer as another dtype needs it


def buckets(stream: Iterable[tuple[str, Tensor]], size: int = BUCKET_BYTES) -> Iterator[tuple[str, Tensor]]:
    """The stream in flat uint8 tensors of at most `size` bytes (or one larger tensor), each with a text that says what
    lies where. All use the same buffer: a bucket is valid until the next is asked for."""
    flat = torch.empty(0, dtype=torch.uint8)
    entries: list[tuple[str, str, list[int], int]] = []
    used = 0
    for name, tensor in stream:
        if entries and used + tensor.nbytes > flat.numel():
            yield json.dumps(entries), flat[:used]
            entries, used = [], 0
        if tensor.nbytes > flat.numel() or flat.device != tensor.device:
            flat = torch.empty(max(size, tensor.nbytes), dtype=torch.uint8, device=tensor.device)
        flat[used : used + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        entries.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), used))
        used += -(-tensor.nbytes // _ALIGN) * _ALIGN
    if entries:
        yield json.dumps(entries), flat[:used]


def unpacked(text: str, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a bucket, as views."""
    for name, kind, shape, start in json.loads(text):
        dtype: torch.dtype = getattr(torch, kind)
        count = torch.Size(shape).numel() * dtype.itemsize
        yield name, flat[start : start + count].view(dtype).view(shape)


def load(model: Any, packed: Sequence[tuple[str, Tensor]]) -> None:
    """Writes a bucket into SGLang's model; runs in the scheduler of every rank, which keeps its shard."""
    for text, flat in packed:
        model.load_weights(unpacked(text, flat))
        if flat.is_cuda:  # the giver uses the buffer again
            torch.cuda.synchronize(flat.device)
