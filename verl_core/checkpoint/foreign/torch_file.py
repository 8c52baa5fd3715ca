"""Files of torch.save, opened without torch.load: tensors are views of the mapped file, read when their rows are.

Such a file is a zip archive of uncompressed members: `<name>/data.pkl` with persistent ids in place of the storages,
and `<name>/data/<key>` with the bytes of each (https://docs.pytorch.org/docs/stable/notes/serialization.html).
"""

from __future__ import annotations

import io
import math
import mmap
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verl_core.checkpoint.foreign.restricted_pickle import Allowed, Function, PlainDict, load, record
from verl_core.config.errors import UserError

_LOCAL_HEADER = 30  # bytes of a zip member's own header, before its name and extra field


@dataclass(frozen=True)
class StorageType:
    """A class of storages, `torch.FloatStorage`: the dtype of its values; None is bytes."""

    dtype: torch.dtype | None


@dataclass(frozen=True)
class Storage:
    """Bytes of the file."""

    file: TorchFile
    dtype: torch.dtype
    start: int
    """Offset in the file, bytes."""
    values: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the file; nothing of it is in memory."""

    storage: Storage
    offset: int
    """In values of the storage."""
    shape: torch.Size
    stride: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype

    def view(self) -> Tensor:
        """The values, backed by the mapped file: pages are read as they are touched. Not to be written to."""
        if not self.shape.numel():
            return torch.empty(self.shape, dtype=self.dtype)
        flat = torch.frombuffer(
            self.storage.file.map, dtype=self.dtype, count=self.storage.values, offset=self.storage.start
        )
        return flat.as_strided(self.shape, self.stride, self.offset)


class TorchFile:
    """What torch.save wrote at `path`, or in `length` bytes of it from `start`: `value`, with `StoredTensor` for every
    tensor and records for the other objects.

    Raises UserError for a file that is cut or none of torch.save's, and for names in it beyond `allowed`.
    """

    def __init__(self, path: Path, allowed: Allowed | None = None, start: int = 0, length: int | None = None):
        self.path, self._start = path, start
        try:
            with path.open("rb") as file:
                # Copy on write, and nothing writes: torch asks for a writable buffer.
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            window = _Window(self.map, start, len(self.map) - start if length is None else length)
            self._archive = zipfile.ZipFile(window)
            root = next(name for name in self._archive.namelist() if name.endswith("data.pkl")).removesuffix("data.pkl")
            pickled = self._archive.read(f"{root}data.pkl")
        except (OSError, ValueError, StopIteration, KeyError, zipfile.BadZipFile) as error:
            raise UserError(
                f"{path} is truncated, or not a file of torch.save: {error or type(error).__name__}"
            ) from error
        if (order := f"{root}byteorder") in self._archive.namelist() and self._archive.read(order) != b"little":
            raise UserError(f"{path} was written on a machine of the other byte order", "save it on one of this order")
        self._root = root
        self.value = load(pickled, {**TORCH, **(allowed or {})}, str(path), self._storage)

    def _storage(self, pid: object) -> Storage:
        match pid:
            case ("storage", StorageType(dtype), str(key), str(), int(values)) if values >= 0:
                dtype = dtype or torch.uint8
                return Storage(self, dtype, self._member(key, values * dtype.itemsize), values)
        raise pickle.UnpicklingError(f"a persistent id of unknown form: {str(pid)[:80]!r}")

    def _member(self, key: str, size: int) -> int:
        """Where the bytes of a storage begin in the file."""
        try:
            info = self._archive.getinfo(f"{self._root}data/{key}")
        except KeyError:
            raise pickle.UnpicklingError(f"the bytes of storage {key} are absent") from None
        head = self._start + info.header_offset
        names = self.map[head + 26 : head + _LOCAL_HEADER]  # lengths of name and extra field, 2 bytes each
        start = head + _LOCAL_HEADER + int.from_bytes(names[:2], "little") + int.from_bytes(names[2:], "little")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != size or start + size > len(self.map):
            raise pickle.UnpicklingError(f"storage {key} has {info.file_size} bytes, not {size}, or is compressed")
        return start


class _Window(io.RawIOBase):
    """Part of a mapped file, as zipfile reads it."""

    def __init__(self, data: mmap.mmap, start: int, length: int):
        self._data, self._start, self._length, self._at = data, start, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if at < 0:
            raise OSError(22, "before the start of the file")
        self._at = at
        return at

    def read(self, size: int | None = -1, /) -> bytes:
        end = self._length if size is None or size < 0 else min(self._at + size, self._length)
        data = self._data[self._start + self._at : self._start + end] if end > self._at else b""
        self._at += len(data)
        return data


def _tensor(storage: Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> StoredTensor:
    if not isinstance(storage, Storage) or len(shape) != len(stride):
        raise pickle.UnpicklingError("a tensor without a storage")
    if not all(type(number) is int and number >= 0 for number in (offset, *shape, *stride)):
        raise pickle.UnpicklingError(f"a tensor of shape {shape}, stride {stride}")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if math.prod(shape) and last >= storage.values:
        raise pickle.UnpicklingError(f"a tensor of shape {shape} beyond the end of its storage")
    return StoredTensor(storage, offset, torch.Size(shape), tuple(stride))


def _with_state(build: Any, kind: Any, arguments: tuple[Any, ...], state: Mapping[str, Any]) -> Any:
    """Of a subclass of Tensor: what `build` makes of it; where that is a record, with its attributes."""
    made = build(*arguments)
    if isinstance(made, WrapperSubclass) and state is not None:
        made.__setstate__(state)
    return made


WrapperSubclass = record("WrapperSubclass")
"""A tensor that holds others, such as a DTensor: its class and its arguments, and the inner tensors as its state."""

_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip
_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip

TORCH: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): PlainDict,
    ("torch", "Size"): Function(lambda sizes=(): tuple(sizes)),
    ("torch", "device"): Function(lambda *words: ":".join(map(str, words))),
    ("torch.serialization", "_get_layout"): Function(str),
    ("torch._utils", "_rebuild_tensor_v2"): Function(_tensor),
    ("torch._utils", "_rebuild_parameter"): Function(lambda data, *_: data),
    ("torch._utils", "_rebuild_parameter_with_state"): Function(lambda data, *_: data),
    ("torch._utils", "_rebuild_wrapper_subclass"): Function(WrapperSubclass),
    ("torch._tensor", "_rebuild_from_type_v2"): Function(_with_state),
    ("torch", "Tensor"): record("Tensor"),
    ("torch.nn.parameter", "Parameter"): record("Parameter"),
    ("torch", "UntypedStorage"): StorageType(None),
    ("torch.storage", "UntypedStorage"): StorageType(None),
    **{("torch", name): StorageType(dtype) for name, dtype in _STORAGES.items()},
    **{("torch", name): getattr(torch, name) for name in _DTYPES},
}
"""The names in a file of plain tensors."""
