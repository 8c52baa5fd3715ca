"""A folder of safetensors shards: names, dtypes and shapes without reading them, values a block of rows at a time."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import _getdtype
from torch import Tensor
from torch.distributed.checkpoint._hf_utils import CUSTOM_METADATA_KEY, SAVED_OFFSETS_KEY
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from verl_core.checkpoint.folders import Folder
from verl_core.checkpoint.tensor_file import open_tensors
from verl_core.config.errors import RlxError, UserError


class Shards:
    """The tensors below `folder`, whatever number of ranks wrote them. Raises UserError when a file cannot be read."""

    def __init__(self, folder: Folder):
        self.folder = folder
        self.tensors: dict[str, TensorStorageMetadata] = {}
        self.files: dict[MetadataIndex, Folder] = {}
        """The file of each part."""
        self._open: dict[Folder, Any] = {}
        for path in _tensor_files(folder):
            try:
                with open_tensors(path) as file:
                    self._add(path, file)
            except RlxError:
                raise
            except Exception as error:  # safetensors raises a type of its own for a cut header
                raise UserError(f"{path} cannot be read: {error}", "choose another step of the run") from error

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    @property
    def names(self) -> Collection[str]:
        return self.tensors.keys()

    def shape(self, name: str) -> torch.Size:
        return self.tensors[name].size

    def dtype(self, name: str) -> torch.dtype:
        return self.tensors[name].properties.dtype

    def complete(self, name: str) -> bool:
        """Whether the parts add up to the whole tensor: false when the file of a rank in the middle is absent."""
        meta = self.tensors[name]
        return sum(chunk.sizes.numel() for chunk in meta.chunks) == meta.size.numel()

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows start to stop, from all files that hold some of them; a scalar is whole."""
        if not self.shape(name):
            return self._part(name, self.tensors[name].chunks[0], ())
        block = torch.empty((stop - start, *self.shape(name)[1:]), dtype=self.dtype(name))
        for chunk in self.tensors[name].chunks:
            first, last = max(start, chunk.offsets[0]), min(stop, chunk.offsets[0] + chunk.sizes[0])
            if first >= last or not chunk.sizes.numel():
                continue
            inner = zip(chunk.offsets[1:], chunk.sizes[1:], strict=True)
            place = (slice(first - start, last - start), *(slice(offset, offset + size) for offset, size in inner))
            block[place] = self._part(name, chunk, (slice(first - chunk.offsets[0], last - chunk.offsets[0]),))
        return block

    def _part(self, name: str, chunk: ChunkStorageMetadata, rows: tuple[slice, ...]) -> Tensor:
        file = self.files[MetadataIndex(name, chunk.offsets)]
        if file not in self._open:
            self._open[file] = open_tensors(file)
        return self._open[file].get_slice(name)[rows]

    def _add(self, path: Folder, file: Any) -> None:
        """The parts of tensors that an open file holds. Where it does not say where they begin, they are whole."""
        offsets = json.loads((file.metadata() or {}).get(CUSTOM_METADATA_KEY) or "{}")
        for name in file.keys():  # noqa: SIM118 - safetensors' file is no mapping
            part = file.get_slice(name)
            sizes, dtype = torch.Size(part.get_shape()), _getdtype(part.get_dtype())
            first = torch.Size(offsets[name][SAVED_OFFSETS_KEY] if name in offsets else [0] * len(sizes))
            end = [offset + size for offset, size in zip(first, sizes, strict=True)]
            whole = self.tensors.setdefault(name, TensorStorageMetadata(TensorProperties(dtype), torch.Size(end), []))
            whole.size = torch.Size(map(max, whole.size, end))
            whole.chunks.append(ChunkStorageMetadata(first, sizes))
            self.files[MetadataIndex(name, first)] = path


class ShardReader(HuggingFaceStorageReader):
    """Gives torch.distributed.checkpoint the tensors of `shards`. Its own reader takes files of a disk alone."""

    def __init__(self, shards: Shards):
        super().__init__(str(shards.folder))
        self.shards = shards

    def read_metadata(self) -> Metadata:
        return Metadata(dict(self.shards.tensors), storage_data=self.shards.files, storage_meta=StorageMeta())

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[Folder, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self.shards.files[item.storage_index], []).append(item)
        for path, items in by_file.items():
            with open_tensors(path) as file:
                for item in items:
                    self._process_read_request(file, item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _tensor_files(folder: Folder) -> Sequence[Folder]:
    if isinstance(folder, Path):
        return sorted(folder.glob("*.safetensors"))
    return [folder / name for name in sorted(folder.sizes()) if name.endswith(".safetensors") and "/" not in name]
