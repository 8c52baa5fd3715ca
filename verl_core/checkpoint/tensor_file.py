"""A safetensors file wherever it lies, as safetensors' own `safe_open` has it: on an object store the header is read at
once, and of a tensor the bytes of the rows that are asked for.

Format: see safetensors_stream.py.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import _getdtype
from torch import Tensor

from verl_core.checkpoint.folders import Folder
from verl_core.checkpoint.objects import ObjectPath

_FIRST_BYTES = 1 << 17  # the length of the header and, of nearly all files, the header: each rank reads it of each file
_BLOCK_BYTES = 32 << 20


def open_tensors(path: Folder) -> Any:
    """`safe_open` of a file or an object. Raises what it raises, or RunError."""
    return ObjectTensors(path) if isinstance(path, ObjectPath) else safe_open(path, framework="pt")


class ObjectTensors:
    """The part of `safe_open` that checkpoints use. Raises ValueError for a header that is cut."""

    def __init__(self, path: ObjectPath):
        self.path = path
        first = path.read_bytes(0, _FIRST_BYTES)
        self._values = 8 + int.from_bytes(first[:8], "little")
        text = (first + path.read_bytes(len(first), self._values) if self._values > len(first) else first)[8:]
        self._header: dict[str, Any] = json.loads(text[: self._values - 8])
        self._metadata: dict[str, str] = self._header.pop("__metadata__", {})

    def __enter__(self) -> ObjectTensors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        return None

    def keys(self) -> list[str]:
        return list(self._header)

    def metadata(self) -> dict[str, str]:
        return self._metadata

    def get_slice(self, name: str) -> ObjectSlice:
        entry = self._header[name]
        return ObjectSlice(self.path, entry["dtype"], entry["shape"], self._values + entry["data_offsets"][0])


class ObjectSlice:
    """One tensor, whose values are read when it is indexed by slices. `start`: of its bytes in the object."""

    def __init__(self, path: ObjectPath, dtype: str, shape: list[int], start: int):
        self.path, self.dtype, self.shape, self.start = path, dtype, shape, start

    def get_dtype(self) -> str:
        return self.dtype

    def get_shape(self) -> list[int]:
        return self.shape

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        dtype, inner = _getdtype(self.dtype), self.shape[1:]
        row_bytes = torch.Size(inner).numel() * dtype.itemsize
        first, last, _ = index[0].indices(self.shape[0]) if self.shape else (0, 1, 1)
        values = torch.empty(max(0, last - first) * row_bytes, dtype=torch.uint8)
        at = self.start + first * row_bytes
        for begin in range(0, values.numel(), _BLOCK_BYTES):
            end = min(values.numel(), begin + _BLOCK_BYTES)
            block = bytearray(self.path.read_bytes(at + begin, at + end))
            values[begin:end] = torch.frombuffer(block, dtype=torch.uint8)
        if not self.shape:
            return values.view(dtype).reshape(())
        return values.view(dtype).reshape(max(0, last - first), *inner)[(slice(None), *index[1:])]
