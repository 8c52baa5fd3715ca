"""Which ranks share what: a copy of the parameters, and the rows of a micro-batch. Both are groups of neighbouring
ranks, so that they lie on one machine where they fit there."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from verl_core.config.errors import UserError
from verl_core.models.ulysses import Split
from verl_core.platforms import Platform


def device_mesh(platform: Platform, group: dist.ProcessGroup | None, role: str, shards: int) -> DeviceMesh:
    """The mesh of `group`, else of all ranks: replicas x shards where `shards` ranks are fewer, else shards (-1: all).
    A process without a process group gets one of its own. Raises UserError for ranks that do not divide."""
    if group is None and not dist.is_initialized():
        dist.init_process_group(platform.comm_backend, store=dist.HashStore(), rank=0, world_size=1)
    ranks = _ranks(group)
    if shards not in (-1, len(ranks)):
        _check(f"{role}.fsdp_config.fsdp_size", shards, len(ranks))
        place = ranks.index(dist.get_rank())
        groups = [_new_group(ranks[place % shards :: shards]), _new_group(_neighbours(ranks, shards))]
        grid = torch.tensor(ranks).view(-1, shards)
        return DeviceMesh.from_group(groups, platform.name, mesh=grid, mesh_dim_names=("replica", "shard"))
    if group is not None:
        return DeviceMesh.from_group(group, platform.name)
    return init_device_mesh(platform.name, (len(ranks),))


def sequence_split(group: dist.ProcessGroup | None, role: str, size: int) -> Split | None:
    """This rank's part among the `size` ranks that split their rows; None where a rank has whole ones. Raises
    UserError for ranks that do not divide."""
    if size == 1:
        return None
    ranks = _ranks(group) if dist.is_initialized() else [0]
    _check(f"{role}.ulysses_sequence_parallel_size", size, len(ranks))
    return Split(_new_group(_neighbours(ranks, size)))


def _check(key: str, size: int, ranks: int) -> None:
    if size < 1 or ranks % size:
        raise UserError(f"{key}={size} does not divide {ranks} ranks", "run a multiple of it, or set the key to 1")


def _ranks(group: dist.ProcessGroup | None) -> list[int]:
    return dist.get_process_group_ranks(group or dist.group.WORLD)


def _neighbours(ranks: list[int], size: int) -> list[int]:
    """The group of `size` ranks, in their order, that this rank is in."""
    first = ranks.index(dist.get_rank()) // size * size
    return ranks[first : first + size]


def _new_group(ranks: list[int]) -> dist.ProcessGroup:
    """Made by its members alone: ranks of other pools need not know of it."""
    return dist.new_group(ranks, use_local_synchronization=True)
