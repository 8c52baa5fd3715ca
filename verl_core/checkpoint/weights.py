"""Tensors that are stored somewhere, whatever the format: names and shapes at once, values by blocks of rows."""

from collections.abc import Collection, Iterator
from typing import Protocol

import torch
from torch import Tensor


class Weights(Protocol):
    """The tensors of a model by name."""

    @property
    def names(self) -> Collection[str]: ...

    def shape(self, name: str) -> torch.Size: ...

    def dtype(self, name: str) -> torch.dtype: ...

    def complete(self, name: str) -> bool:
        """Whether the parts add up to the whole tensor."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows start to stop; a scalar is whole."""
        ...


def blocks(weights: Weights, name: str, block_bytes: int) -> Iterator[Tensor]:
    """The tensor from its first row to its last, in blocks of about `block_bytes`; a scalar is one block."""
    shape = weights.shape(name)
    if not shape:
        yield weights.rows(name, 0, 1)
        return
    row_bytes = shape[1:].numel() * weights.dtype(name).itemsize
    rows = max(1, block_bytes // max(1, row_bytes))
    for start in range(0, shape[0], rows):
        yield weights.rows(name, start, min(shape[0], start + rows))
