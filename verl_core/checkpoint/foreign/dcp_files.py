"""Tensors in a folder of torch.distributed.checkpoint: `.metadata` and `*.distcp` files.

`.metadata` is a pickle that tells, for every tensor, which box of it lies where; in a `.distcp` file each box is what
torch.save writes, one after the other (torch/distributed/checkpoint/{metadata,filesystem}.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verl_core.checkpoint.foreign.restricted_pickle import Allowed, Function, Record, load, record
from verl_core.checkpoint.foreign.torch_file import TORCH, StoredTensor, TorchFile
from verl_core.config.errors import UserError

METADATA = ".metadata"
_OPEN = 16  # boxes kept open: each maps its file


@dataclass(frozen=True)
class Box:
    """A part of a tensor: where it lies in the tensor, and its bytes in a file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class BoxedTensor:
    """A tensor in boxes that do not overlap."""

    dtype: torch.dtype
    shape: torch.Size
    boxes: tuple[Box, ...]


class DcpFiles:
    """The tensors of `folder`. Raises UserError where `.metadata` cannot be read, or calls for what does not belong."""

    def __init__(self, folder: Path):
        self.folder = folder
        path = folder / METADATA
        try:
            metadata = load(path.read_bytes(), _ALLOWED, str(path))
            self.tensors = _tensors(metadata)
        except UserError:
            raise
        except Exception as error:  # metadata that says nonsense raises any type
            raise UserError(f"{path} cannot be read: {type(error).__name__} {error}", "copy it there again") from error
        self._opened = lru_cache(maxsize=_OPEN)(self._open)

    def faults(self, names: Sequence[str]) -> list[str]:
        """Every missing or cut file that `names` need, and every one that is not what `.metadata` says of them."""
        ends: dict[str, int] = {}
        for name in names:
            for box in self.tensors[name].boxes:
                ends[box.file] = max(ends.get(box.file, 0), box.start + box.length)
        found = [fault for file, end in sorted(ends.items()) if (fault := self._file_fault(file, end))]
        found += [f"{name} is incomplete" for name in names if not _complete(self.tensors[name])]
        if found:
            return found
        by_file: dict[str, list[str]] = {}
        for name in names:
            for file, fault in self._box_faults(name):
                by_file.setdefault(file, []).append(fault)
        return [
            first + (f" (and {len(more)} more of what {METADATA} says to be in {file})" if more else "")
            for file, (first, *more) in sorted(by_file.items())
        ]

    def region(self, name: str, start: Sequence[int], stop: Sequence[int]) -> Tensor:
        """The values from `start` to `stop` along every axis, reading no others."""
        tensor = self.tensors[name]
        block = torch.empty([b - a for a, b in zip(start, stop, strict=True)], dtype=tensor.dtype)
        for box in tensor.boxes:
            low = [max(a, offset) for a, offset in zip(start, box.offsets, strict=True)]
            ends = zip(stop, box.offsets, box.sizes, strict=True)
            high = [min(b, offset + size) for b, offset, size in ends]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            target = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, start, strict=True))
            source = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, box.offsets, strict=True))
            block[target] = self._opened(box).view()[source]
        return block

    def _open(self, box: Box) -> StoredTensor:
        value = TorchFile(self.folder / box.file, start=box.start, length=box.length).value
        if not isinstance(value, StoredTensor):
            raise UserError(f"{self.folder / box.file} at byte {box.start} holds no tensor")
        return value

    def _file_fault(self, file: str, end: int) -> str | None:
        try:
            size = (self.folder / file).stat().st_size
        except OSError:
            return f"{file} is missing (at least {end:,} bytes)"
        return None if size >= end else f"{file} has {size:,} of at least {end:,} bytes"

    def _box_faults(self, name: str) -> list[tuple[str, str]]:
        """With the file of each."""
        tensor, found = self.tensors[name], []
        for box in tensor.boxes:
            try:
                stored = self._opened(box)
            except UserError as error:
                found.append((box.file, f"{name}: {error}"))
                continue
            if stored.shape != box.sizes or stored.dtype != tensor.dtype:
                there, said = f"{list(stored.shape)} {stored.dtype}", f"{list(box.sizes)} {tensor.dtype}"
                found.append((box.file, f"{name} in {box.file} is {there}, {METADATA} says {said}"))
        return found


class _TensorProperties(Record):
    """Has its dtype as the first of five values instead of a dictionary."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and state and isinstance(state[0], torch.dtype):
            self.state["dtype"] = state[0]


def _tensors(metadata: Any) -> dict[str, BoxedTensor]:
    """Raises KeyError, TypeError, ValueError or AttributeError for records of another form."""
    places: dict[tuple[str, tuple[int, ...]], Mapping[str, Any]] = {}
    for index, info in metadata.state["storage_data"].items():
        if index.state.get("offset") is not None:  # else pickled bytes
            places[index.state["fqn"], _sizes(index.state["offset"])] = info.state
    tensors = {}
    for name, stored in metadata.state["state_dict_metadata"].items():
        if not isinstance(stored, _TensorMetadata):
            continue  # bytes: a pickled object, which no weight is
        shape, chunks = _sizes(stored.state["size"]), [chunk.state for chunk in stored.state["chunks"]]
        by_offset = {_sizes(chunk["offsets"]): _sizes(chunk["sizes"]) for chunk in chunks}
        boxes = [_box(offsets, sizes, shape, places[name, offsets]) for offsets, sizes in by_offset.items()]
        tensors[str(name)] = BoxedTensor(stored.state["properties"].state["dtype"], torch.Size(shape), tuple(boxes))
    return tensors


def _box(offsets: tuple[int, ...], sizes: tuple[int, ...], shape: tuple[int, ...], place: Mapping[str, Any]) -> Box:
    file, start, length = place["relative_path"], place["offset"], place["length"]
    if place.get("transform_descriptors"):
        raise ValueError(f"{file} is compressed")
    if not isinstance(file, str) or Path(file).name != file:
        raise ValueError(f"a file named {file!r}")
    _sizes((start, length))
    if any(offset + size > whole for offset, size, whole in zip(offsets, sizes, shape, strict=True)):
        raise ValueError(f"a box beyond {list(shape)} in {file}")
    return Box(offsets, sizes, file, start, length)


def _sizes(values: Any) -> tuple[int, ...]:
    if not all(type(value) is int and value >= 0 for value in values):
        raise ValueError(f"sizes {values!r}")
    return tuple(values)


def _complete(tensor: BoxedTensor) -> bool:
    return sum(math.prod(box.sizes) for box in tensor.boxes) == tensor.shape.numel()


_TensorMetadata = record("TensorStorageMetadata")
_PATH = Function(lambda *parts: "/".join(map(str, parts)))
_METADATA_MODULE = "torch.distributed.checkpoint.metadata"
_ALLOWED: Allowed = TORCH | {
    (_METADATA_MODULE, "Metadata"): record("Metadata"),
    (_METADATA_MODULE, "TensorStorageMetadata"): _TensorMetadata,
    (_METADATA_MODULE, "BytesStorageMetadata"): record("BytesStorageMetadata"),
    (_METADATA_MODULE, "TensorProperties"): _TensorProperties,
    (_METADATA_MODULE, "ChunkStorageMetadata"): record("ChunkStorageMetadata"),
    (_METADATA_MODULE, "MetadataIndex"): record("MetadataIndex"),
    (_METADATA_MODULE, "StorageMeta"): record("StorageMeta"),
    (_METADATA_MODULE, "_MEM_FORMAT_ENCODING"): Function(lambda *_: None),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): record("StorageInfo"),
    ("pathlib", "PosixPath"): _PATH,
    ("pathlib._local", "PosixPath"): _PATH,
}
