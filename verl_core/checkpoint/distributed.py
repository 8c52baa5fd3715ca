"""One engine's state to and from a role's folder, on all ranks: safetensors through torch.distributed.checkpoint, JSON
for the rest. The folder does not depend on the number of ranks or on how tensors were sharded."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from verl_core.checkpoint.adapter import check_adapter, gathered, write_adapter
from verl_core.checkpoint.disk import writing_to
from verl_core.checkpoint.folders import Folder, folder_of, on_disk
from verl_core.checkpoint.manifest import write_text_durably
from verl_core.checkpoint.shards import ShardReader, Shards
from verl_core.checkpoint.staging import HostCopies, StagedFile, Stager
from verl_core.config.errors import UserError
from verl_core.training.protocol import EngineState

ENGINE = "engine.json"
FORMAT = 1
_FILE_BYTES = 2 << 30  # of whole tensors a file


def state_bytes(state: EngineState) -> int:
    """Bytes that `save_role` writes over all ranks together (tensors only; the rest is small). Not collective."""
    return sum(part[name].nbytes for part in (state.weights, state.optimizer) for name in _shared(part))


def share_bytes(state: EngineState) -> int:
    """Bytes of the tensors on this rank, of which `save_role` writes there all that no other rank has too."""
    parts = (state.weights, state.optimizer)
    return sum(_local(part[name]).nbytes for part in parts for name in _shared(part))


@dataclass(frozen=True)
class StagedRole:
    """What one rank has to write of a role."""

    folder: Folder
    files: list[StagedFile]
    engine: str | None  # text of engine.json, on the first rank
    adapter: tuple[Mapping[str, Any], dict[str, Tensor]] | None  # peft's configuration and tensors, there too

    def write(self) -> None:
        """Needs no other rank. Raises RunError, on a full disk DiskFull."""
        with writing_to(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for file in self.files:
                file.write()
            if self.adapter is not None:
                with on_disk(self.folder / "weights") as weights:
                    write_adapter(weights, *self.adapter)
            if self.engine is not None:
                write_text_durably(self.folder / ENGINE, self.engine)


def stage_role(
    folder: Folder | str,
    state: EngineState,
    group: dist.ProcessGroup | None = None,
    copies: HostCopies | None = None,
) -> StagedRole:
    """Takes this rank's share of `state` for `folder` (a role's folder inside `CheckpointStore.begin`'s), to be written
    later. Called on all ranks of `group` (None: the default group, or this process alone when torch.distributed is not
    initialised).

    With `copies` the engine may go on when its device has been waited for; without, its tensors must stay as they are
    until `write` has returned. Tensors keep dtype and bytes; tensors that share memory (tied embeddings)
    are stored once; an adapter is stored whole, as peft's folder. Keys of `scalars` must be strings.
    """
    folder, first = folder_of(folder), _rank(group) == 0
    weights = gathered(state.weights, keep=first) if state.adapter else {}
    files: list[StagedFile] = []
    for part in ("optimizer",) if state.adapter else ("weights", "optimizer"):
        whole: dict[str, Tensor] = getattr(state, part)
        tensors = {name: whole[name].detach() for name in _ties(whole, group)}
        if tensors:
            stager = Stager(folder / part, _file_numbers(tensors), copies)
            try:
                _quietly(dcp.save, tensors, storage_writer=stager, process_group=group)
            except CheckpointException as failed:  # a BaseException that carries every rank's failure
                raise next(iter(failed.failures.values()))[0] from failed
            files += stager.files
    engine = {"format": FORMAT, "world_size": _world_size(group), "scalars": state.scalars}
    return StagedRole(
        folder,
        files,
        json.dumps(engine, indent=1) + "\n" if first else None,
        (state.adapter, weights) if first and state.adapter else None,
    )


def save_role(folder: Folder | str, state: EngineState, group: dist.ProcessGroup | None = None) -> None:
    """Writes `state` below `folder` as `stage_role` describes. Called on all ranks of `group`, of which each returns
    when its own share is on the disk. Raises RunError, as `StagedRole.write`."""
    stage_role(folder, state, group).write()


def load_role(folder: Folder | str, like: EngineState, group: dist.ProcessGroup | None = None) -> EngineState:
    """Reads what `save_role` wrote, on any number of ranks. Called on all ranks of `group`.

    The tensors of `like` are filled in place (converted to their dtype) and returned, so that loading needs no second
    copy; optimizer tensors that a fresh engine does not have yet are made with the placement of their parameter. Raises
    UserError, before anything is changed, naming tensors that are missing, unknown, incomplete or of another shape, and
    for another adapter.
    """
    folder = folder_of(folder)
    engine = _read_engine(folder)
    check_adapter(folder / "weights", like.adapter)
    weights = {name: tensor.detach() for name, tensor in like.weights.items()}
    optimizer = {name: tensor.detach() for name, tensor in like.optimizer.items()}
    saved_weights, saved_optimizer = Shards(folder / "weights"), Shards(folder / "optimizer")
    for name, stored in saved_optimizer.tensors.items():
        if name not in optimizer:
            optimizer[name] = _blank(stored, like.weights.get(name.partition("/")[2]), like)
    plans = [
        (saved_weights, _matched(weights, saved_weights, group)),
        (saved_optimizer, _matched(optimizer, saved_optimizer, group)),
    ]
    for shards, tensors in plans:
        if tensors:
            _quietly(dcp.load, tensors, storage_reader=ShardReader(shards), process_group=group)
    return EngineState(weights, optimizer, engine["scalars"], like.adapter)


def _shared(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """First name -> all names of the same memory, as this rank sees it."""
    by_memory: dict[object, list[str]] = {}
    for name, tensor in tensors.items():
        local = _local(tensor)
        storage = StorageWeakRef(local.untyped_storage()).cdata
        key = (storage, local.storage_offset(), tensor.shape, local.stride()) if local.numel() else name
        by_memory.setdefault(key, []).append(name)
    return {names[0]: names for names in by_memory.values()}


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _ties(tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> dict[str, list[str]]:
    """`_shared` as rank 0 sees it: where a shard is empty its address says nothing."""
    ties = [_shared(tensors)]
    if _world_size(group) > 1:
        dist.broadcast_object_list(ties, group=group, group_src=0)
    return ties[0]


def _matched(tensors: dict[str, Tensor], shards: Shards, group: dist.ProcessGroup | None) -> dict[str, Tensor]:
    """The tensors to fill under the names they were stored by. Raises UserError when they do not fit."""
    ties = _ties(tensors, group).values()
    wanted = {name: tensors[name] for names in ties for name in names if name in shards}
    problems = [f"{names[0]} is not in the checkpoint" for names in ties if not any(name in shards for name in names)]
    problems += [f"{name} is unknown to the model" for name in shards.tensors if name not in tensors]
    for name, tensor in wanted.items():
        if shards.shape(name) != tensor.shape:
            problems.append(
                f"{name} is {list(shards.shape(name))} in the checkpoint, {list(tensor.shape)} in the model"
            )
        elif not shards.complete(name):
            problems.append(f"{name} is incomplete (a shard is missing)")
    if problems:
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise UserError(
            f"{shards.folder} does not fit this model: " + "; ".join(problems[:8]) + more,
            "resume with the model and optimizer the run was started with",
        )
    return wanted


def _blank(stored: TensorStorageMetadata, parameter: Tensor | None, like: EngineState) -> Tensor:
    dtype = stored.properties.dtype
    if parameter is not None and parameter.shape == stored.size:
        return torch.zeros_like(parameter, dtype=dtype).detach()
    device = next(iter(like.weights.values())).device if like.weights else "cpu"
    return torch.zeros(stored.size, dtype=dtype, device=device)


def _file_numbers(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Which file each tensor goes to (from 1), so that no file of a rank grows past `_FILE_BYTES` of whole tensors."""
    numbers: dict[str, int] = {}
    number, filled = 1, 0
    for name, tensor in tensors.items():
        if filled and filled + tensor.nbytes > _FILE_BYTES:
            number, filled = number + 1, 0
        numbers[name] = number
        filled += tensor.nbytes
    return numbers


def _read_engine(folder: Folder) -> dict:
    try:
        engine = json.loads((folder / ENGINE).read_text(encoding="utf-8"))
        version = engine["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / ENGINE} cannot be read: {error}", "choose another step of the run") from error
    if version != FORMAT:
        raise UserError(f"{folder / ENGINE} has format {version}, this rlx reads format {FORMAT}")
    return engine


def _quietly(call, *arguments, **options) -> None:
    with warnings.catch_warnings():  # without a process group torch says on every call that it assumes one process
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        call(*arguments, **options)


def _rank(group: dist.ProcessGroup | None) -> int:
    return dist.get_rank(group) if dist.is_initialized() else 0


def _world_size(group: dist.ProcessGroup | None) -> int:
    return dist.get_world_size(group) if dist.is_initialized() else 1
