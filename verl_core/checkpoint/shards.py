"""A folder of safetensors shards: names, dtypes and shapes without reading them, values a block of rows at a time."""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata

from verl_core.config.errors import UserError


class Shards:
    """The tensors below `folder`, whatever number of ranks wrote them. Raises UserError when a file cannot be read."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.tensors: Mapping[str, TensorStorageMetadata] = {}
        self._files: Mapping[MetadataIndex, str] = {}
        self._open: dict[str, safe_open] = {}
        if not folder.is_dir():
            return
        try:
            metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
        except Exception as error:  # safetensors raises a type of its own for a cut header
            raise UserError(f"{folder} cannot be read: {error}", "choose another step of the run") from error
        self.tensors = {n: m for n, m in metadata.state_dict_metadata.items() if isinstance(m, TensorStorageMetadata)}
        self._files = {index: info.relative_path for index, info in (metadata.storage_data or {}).items()}

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
        file = self._files[MetadataIndex(name, chunk.offsets)]
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt")
        return self._open[file].get_slice(name)[rows]
