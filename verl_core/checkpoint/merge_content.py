"""What a merge can write, and the dtypes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from verl_core.checkpoint.safetensors_stream import TensorPlan

Dtype = Literal["keep", "bf16", "fp32"]
BLOCK_BYTES = 4 << 20  # stays in the caches between being read, cast and written, and in the memory of the block before
_CAST = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Content(Protocol):
    """A folder to write: the tensors of its files, a block of rows at a time, and what lies beside them."""

    @property
    def tensors(self) -> list[TensorPlan]: ...

    def files(self, max_file_bytes: int) -> dict[str, list[TensorPlan]]:
        """File name -> its tensors."""
        ...

    def blocks(self, tensor: TensorPlan) -> Iterator[Tensor]:
        """The values in order, in the planned dtype."""
        ...

    def finish(self, folder: Path) -> None:
        """Writes the rest, after the tensors. Raises UserError when these are not worth keeping."""
        ...

    def report(self) -> dict[str, Any]:
        """What to say of it beside names and sizes."""
        ...


def cast(stored: torch.dtype, dtype: Dtype) -> torch.dtype:
    """The dtype to write."""
    return stored if dtype == "keep" or not stored.is_floating_point else _CAST[dtype]


def main_dtype(tensors: Sequence[TensorPlan]) -> torch.dtype:
    """The dtype of most values: what config.json names, hence what transformers loads in."""
    values: Counter[torch.dtype] = Counter()
    for tensor in tensors:
        values[tensor.dtype] += tensor.shape.numel() if tensor.dtype.is_floating_point else 0
    return values.most_common(1)[0][0]
