"""Changes of a tensor as bytes. Patterns are compared as integers, so that every one of them travels.

Positions are gaps between changed elements, one or two bytes each; a gap that does not fit is preceded by units of the
largest value. New values are either the patterns themselves or, where that is shorter, the difference of the patterns
as integers in one byte (a small AdamW step moves a bfloat16 by one unit in the last place), with the patterns that are
farther away behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from verl_core.weights.buckets import as_bytes

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FAR = -128  # in a byte of difference: the pattern stands behind


def bits(tensor: Tensor) -> Tensor:
    """The bit patterns as integers, a view of the same shape."""
    return tensor.view(_BITS[tensor.element_size()])


def encode(new: Tensor, old: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """What turns `old` into `new` (flat integers [n]): bytes, and a note for `apply`. The bytes of `new` itself where
    changes would take more."""
    position = (new != old).nonzero().view(-1)
    values, before = new[position], old[position]
    units, width = _gaps(position)
    near, far = _differences(values, before)
    parts = [near, far, units] if near.nbytes + far.nbytes < values.nbytes else [values, units]
    payload, sizes = _joined(parts)
    if payload.numel() >= new.nbytes and len(position):
        return as_bytes(new), {"how": "whole", "changed": len(position)}
    return payload, {"how": "delta", "changed": len(position), "sizes": sizes, "width": width}


def apply(target: Tensor, payload: Tensor, note: dict[str, Any]) -> None:
    """Changes `target` (integers of any shape and strides) in place."""
    if note["how"] == "whole":
        target.copy_(payload.view(target.dtype).view(target.shape))
        return
    *values, units = _split(payload, note["sizes"])
    position = _positions(units, note["width"]).to(target.device)
    if len(position) == 0:
        return
    flat = target.view(-1) if target.is_contiguous() else None
    index = (position,) if flat is not None else torch.unravel_index(position, target.shape)
    place = flat if flat is not None else target
    if len(values) == 1:
        place[index] = values[0].view(target.dtype).to(target.device)
        return
    near, far = (part.to(target.device) for part in (values[0].view(torch.int8), values[1].view(target.dtype)))
    changed = place[index] + near.to(target.dtype)
    changed[near == _FAR] = far
    place[index] = changed


def _differences(values: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Differences in a byte each, and the patterns that such a byte does not reach."""
    step = values - before  # wraps, and so does the addition that undoes it
    fits = (step > _FAR) & (step < -_FAR)
    return torch.where(fits, step, _FAR).to(torch.int8), values[~fits]


def _gaps(position: Tensor) -> tuple[Tensor, int]:
    """Units of one or two bytes, whichever takes less, and their width in bytes."""
    gap = torch.diff(position, prepend=position.new_full((1,), -1)) - 1
    cost = {width: width * (len(gap) + int((gap // _most(width)).sum())) for width in (1, 2)}
    width = min(cost, key=lambda width: cost[width])
    full = gap // _most(width)
    units = gap.new_full((cost[width] // width,), _most(width))
    units[(full + 1).cumsum(0) - 1] = gap % _most(width)
    return units.to(torch.uint8 if width == 1 else torch.int16), width


def _positions(units: Tensor, width: int) -> Tensor:
    """The inverse of `_gaps`."""
    value = units.view(torch.uint8 if width == 1 else torch.int16).to(torch.int64) & _most(width)
    ends = value != _most(width)
    return (value + ends).cumsum(0)[ends] - 1


def _most(width: int) -> int:
    return (1 << 8 * width) - 1


def _joined(parts: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Bytes of all parts, each from a multiple of 8 on, and their lengths."""
    raw = [as_bytes(part) for part in parts]
    padded = [torch.nn.functional.pad(part, (0, -len(part) % 8)) for part in raw]
    return torch.cat(padded), [len(part) for part in raw]


def _split(payload: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size + -size % 8)
    return [payload[start : start + size] for start, size in zip(starts, sizes, strict=False)]
