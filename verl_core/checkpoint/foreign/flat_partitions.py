"""Parameters out of flat vectors that are split over ranks, as ZeRO keeps its fp32 weights.

Layouts as DeepSpeed writes them and its own converter reads them (deepspeed/utils/zero_to_fp32.py, 0.19):

- Stage 3: a rank's vector has ceil(n / ranks) values of every parameter of n values, one parameter after the other; the
  last share is padded.
- Stages 1 and 2: the parameters of a group follow each other in one vector, which is cut into equal parts, one a rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_core.checkpoint.foreign.torch_file import StoredTensor


class Vector:
    """Stored tensors of one dtype as one flat vector, in their order."""

    def __init__(self, parts: Sequence[StoredTensor]):
        self._parts = parts
        self.size = sum(part.shape.numel() for part in parts)

    def copy(self, start: int, target: Tensor) -> None:
        """Fills `target` with the values from `start`."""
        at, done = 0, 0
        for part in self._parts:
            size = part.shape.numel()
            first = max(0, start + done - at)
            if first < size and done < len(target):
                count = min(size - first, len(target) - done)
                target[done : done + count] = part.view().reshape(-1)[first : first + count]
                done += count
            at += size


@dataclass(frozen=True)
class Span:
    """`count` values of a vector from `start`."""

    vector: Vector
    start: int
    count: int


@dataclass(frozen=True)
class FlatTensor:
    """A tensor whose values, row by row, are those of its spans."""

    dtype: torch.dtype
    shape: torch.Size
    spans: tuple[Span, ...]

    def rows(self, start: int, stop: int) -> Tensor:
        """Reads no other rows; a scalar is whole."""
        shape = torch.Size((min(stop, self.shape[0]) - start, *self.shape[1:])) if self.shape else self.shape
        values = torch.empty(shape.numel(), dtype=self.dtype)
        first = start * self.shape[1:].numel() if self.shape else 0
        at = 0
        for span in self.spans:
            low, high = max(first, at), min(first + len(values), at + span.count)
            if low < high:
                span.vector.copy(span.start + low - at, values[low - first : high - first])
            at += span.count
        return values.reshape(shape)


def split_by_parameter(
    shapes: Mapping[str, torch.Size], ranks: Sequence[Vector], dtype: torch.dtype
) -> tuple[dict[str, FlatTensor], int]:
    """Stage 3: the tensors, and how many values of each rank's vector they take."""
    tensors, at = {}, 0
    for name, shape in shapes.items():
        share = math.ceil(shape.numel() / len(ranks))
        left = [max(0, min(share, shape.numel() - rank * share)) for rank in range(len(ranks))]
        spans = tuple(Span(vector, at, count) for vector, count in zip(ranks, left, strict=True) if count)
        tensors[name] = FlatTensor(dtype, shape, spans)
        at += share
    return tensors, at


def one_after_the_other(
    shapes: Mapping[str, torch.Size], vector: Vector, dtype: torch.dtype
) -> tuple[dict[str, FlatTensor], int]:
    """Stages 1 and 2: the tensors of a group, and how many values they take."""
    tensors, at = {}, 0
    for name, shape in shapes.items():
        tensors[name] = FlatTensor(dtype, shape, (Span(vector, at, shape.numel()),))
        at += shape.numel()
    return tensors, at
