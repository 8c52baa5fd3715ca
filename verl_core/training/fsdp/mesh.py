"""Which ranks share what: a copy of the parameters, parts of layers, and the rows of a micro-batch. All are groups of
neighbouring ranks, so that they lie on one machine where they fit there."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from verl_core.config.errors import UserError
from verl_core.models.ulysses import Split
from verl_core.platforms import Platform


@dataclass(frozen=True)
class Meshes:
    """`whole`: all ranks, replicas x shards where there are several copies, else shards. `beside`, `part`: the same
    ranks where layers or experts are cut into parts, as those that hold the same part ([replicas x] shards) and those
    that hold the different ones."""

    whole: DeviceMesh
    beside: DeviceMesh | None = None
    part: DeviceMesh | None = None


def device_meshes(
    platform: Platform, group: dist.ProcessGroup | None, role: str, shards: int, parts: int = 1, key: str = ""
) -> Meshes:
    """The meshes of `group`, else of all ranks: `shards` ranks share a copy (-1: all), and `parts` of them have one
    part each; `key` is what they are called below the role. Raises UserError for ranks that do not divide."""
    ranks = _ranks(group)
    copy = len(ranks) if shards == -1 else shards
    _check(f"{role}.fsdp_config.fsdp_size", copy, len(ranks))
    _check(f"{role}.{key}", parts, copy)
    if copy == len(ranks):
        whole = DeviceMesh.from_group(group, platform.name) if group else init_device_mesh(platform.name, (copy,))
    else:
        whole = _mesh(platform, torch.tensor(ranks).view(-1, copy), ("replica", "shard"))
    if parts == 1:
        return Meshes(whole)
    replicas = len(ranks) // copy
    sizes = (replicas, copy // parts, parts)[replicas == 1 :]
    names = ("replica", "shard", "part")[replicas == 1 :]
    # says of every gather over two dimensions that it is two gathers
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    grid = _mesh(platform, torch.tensor(ranks).view(sizes), names)
    return Meshes(whole, grid[names[:-1]], grid["part"])


def sequence_split(group: dist.ProcessGroup | None, role: str, size: int) -> Split | None:
    """This rank's part among the `size` ranks that split their rows; None where a rank has whole ones. Raises
    UserError for ranks that do not divide."""
    if size == 1:
        return None
    ranks = _ranks(group)
    _check(f"{role}.ulysses_sequence_parallel_size", size, len(ranks))
    return Split(_new_group(_neighbours(ranks, size)))


def _mesh(platform: Platform, grid: Tensor, names: tuple[str, ...]) -> DeviceMesh:
    """The mesh of a grid of ranks, by groups that no rank outside of it takes part in making."""
    place = (grid == dist.get_rank()).nonzero()[0].tolist()
    lines = [grid[(*place[:dim], slice(None), *place[dim + 1 :])].tolist() for dim in range(grid.ndim)]
    return DeviceMesh.from_group([_new_group(line) for line in lines], platform.name, mesh=grid, mesh_dim_names=names)


def _check(key: str, size: int, ranks: int) -> None:
    if size < 1 or ranks % size:
        raise UserError(f"{key}={size} does not divide {ranks} ranks", "run a multiple of it, or set the key to 1")


def _ranks(group: dist.ProcessGroup | None) -> list[int]:
    return dist.get_process_group_ranks(group or dist.group.WORLD) if dist.is_initialized() else [0]


def _neighbours(ranks: list[int], size: int) -> list[int]:
    """The group of `size` ranks, in their order, that this rank is in."""
    first = ranks.index(dist.get_rank()) // size * size
    return ranks[first : first + size]


def _new_group(ranks: list[int]) -> dist.ProcessGroup:
    """Made by its members alone: ranks of other pools need not know of it."""
    return dist.new_group(ranks, use_local_synchronization=True)
