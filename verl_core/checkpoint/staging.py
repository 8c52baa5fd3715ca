"""This rank's share of an engine's tensors, taken while training waits and written while it goes on.

Which rank writes what is agreed by torch.distributed.checkpoint; its own writer would write at once. Taking the bytes
needs every rank, writing them none of the others: a writer that fails or falls behind stops no collective of training.
Its own asynchronous save keeps a process group busy beside training's, and joins a tensor's file in memory once more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint._hf_utils import (
    CUSTOM_METADATA_KEY,
    DCP_VERSION_KEY,
    FORMAT_KEY,
    FORMAT_VALUE,
    HF_DCP_VERSION,
    SAVED_OFFSETS_KEY,
    _gen_file_name,
)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from verl_core.checkpoint.folders import Folder
from verl_core.checkpoint.safetensors_stream import TensorPlan, write_file

SLAB_BYTES = 64 << 20
"""A power of two: the allocator of pinned memory rounds everything else up to one."""


class HostCopies:
    """Host memory for one copy of this rank's share, kept from one save to the next, because new pages cost more time
    than what is copied into them; pinned for what comes from a GPU. `clear` before a save, when the last is written."""

    def __init__(self) -> None:
        self._slabs: list[Tensor] = []
        self.used = 0  # bytes, of all slabs in order

    @property
    def bytes(self) -> int:
        """What is allocated."""
        return sum(slab.nbytes for slab in self._slabs)

    def clear(self) -> None:
        self.used = 0

    def reserve(self, n_bytes: int, pinned: bool) -> None:
        """Makes memory for that much, and has its pages given."""
        while self.bytes < n_bytes:
            self._slabs.append(torch.empty(SLAB_BYTES, dtype=torch.uint8, pin_memory=pinned).zero_())

    def take(self, tensor: Tensor) -> list[Tensor]:
        """The tensor's bytes, in one piece or several. A copy from a GPU is complete after the device is waited for."""
        data, pieces = _as_bytes(tensor), []
        while data.numel():
            at, start = divmod(self.used, SLAB_BYTES)
            if at == len(self._slabs):
                self._slabs.append(torch.empty(SLAB_BYTES, dtype=torch.uint8, pin_memory=tensor.is_cuda))
            piece = self._slabs[at][start : start + data.numel()]
            piece.copy_(data[: piece.numel()], non_blocking=True)
            pieces.append(piece)
            data = data[piece.numel() :]
            self.used += piece.numel()
        return pieces


@dataclass(frozen=True)
class StagedTensor:
    """What one rank writes of a tensor: where that begins in the whole, and its values: copies of them, or (as they are
    when they are written) the tensor itself."""

    plan: TensorPlan
    offsets: tuple[int, ...]
    values: list[Tensor]

    def blocks(self) -> Iterator[Tensor]:
        for values in self.values:
            for block in _as_bytes(values).split(SLAB_BYTES):
                yield block.cpu()


@dataclass(frozen=True)
class StagedFile:
    """One safetensors file of this rank, as torch's HuggingFaceStorageReader reads them."""

    path: Folder
    tensors: dict[str, StagedTensor]

    def write(self) -> None:
        """Durably. Raises OSError, of an object store RunError."""
        offsets = {name: {SAVED_OFFSETS_KEY: tensor.offsets} for name, tensor in self.tensors.items()}
        metadata = {
            CUSTOM_METADATA_KEY: json.dumps(offsets),
            DCP_VERSION_KEY: str(HF_DCP_VERSION),
            FORMAT_KEY: FORMAT_VALUE,
        }
        plans = [tensor.plan for tensor in self.tensors.values()]
        write_file(self.path, plans, lambda plan: self.tensors[plan.name].blocks(), metadata=metadata)


class Stager(StorageWriter):
    """In place of writing what the ranks have agreed on, keeps this rank's part of it in `files`.

    `numbers`: the file, from 1, that each tensor goes to. `copies`: memory for what may change before it is written;
    None: nothing changes until then.
    """

    def __init__(self, folder: Folder, numbers: dict[str, int], copies: HostCopies | None):
        self.folder, self.numbers, self.copies = folder, numbers, copies
        self.shard = 1
        self.files: list[StagedFile] = []

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, rank: int = 0, **kwargs: Any) -> None:
        self.shard = rank + 1

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        largest = max(self.numbers.values())
        files: dict[Folder, StagedFile] = {}
        for item in plan.items:
            name, values = item.index.fqn, planner.resolve_data(item)
            assert isinstance(values, Tensor) and item.tensor_data is not None
            values = values.detach()
            file = self.folder / _gen_file_name(self.numbers[name], largest, self.shard)
            staged = StagedTensor(
                TensorPlan(name, values.dtype, values.shape),
                tuple(item.tensor_data.chunk.offsets),
                [values] if self.copies is None else self.copies.take(values),
            )
            files.setdefault(file, StagedFile(file, {})).tensors[name] = staged
        self.files = list(files.values())
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing: each file's header says what is in it."""

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        """Nothing: a stager serves one save."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return True


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
