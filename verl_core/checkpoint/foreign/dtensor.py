"""DTensors in a file of torch.save, told from their records: no process group is made and no rank's code is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from verl_core.checkpoint.foreign.restricted_pickle import Allowed, Record, record
from verl_core.checkpoint.foreign.torch_file import StoredTensor, WrapperSubclass

Shard, StridedShard, Replicate, Partial = map(record, ("Shard", "StridedShard", "Replicate", "Partial"))
_SPEC = ("torch.distributed.tensor._dtensor_spec", "torch.distributed._tensor.placement_types")
_PLACEMENT = ("torch.distributed.tensor.placement_types", "torch.distributed._tensor.placement_types")

DTENSOR: Allowed = {
    **{(module, "DTensor"): record("DTensor") for module in ("torch.distributed.tensor", "torch.distributed._tensor")},
    ("torch.distributed.tensor._api", "DTensor"): record("DTensor"),
    ("torch.distributed._tensor.api", "DTensor"): record("DTensor"),
    **{(module, name): record(name) for module in _SPEC for name in ("DTensorSpec", "TensorMeta", "ShardOrderEntry")},
    **{(module, "Shard"): Shard for module in _PLACEMENT},
    **{(module, "_StridedShard"): StridedShard for module in _PLACEMENT},
    **{(module, "Replicate"): Replicate for module in _PLACEMENT},
    **{(module, name): Partial for module in _PLACEMENT for name in ("Partial", "_Partial")},
    ("torch.distributed.device_mesh", "DeviceMesh"): record("DeviceMesh"),
    ("torch.distributed._mesh_layout", "_MeshLayout"): record("MeshLayout"),
    ("torch.distributed._mesh_layout", "_FlatLayout"): record("FlatLayout"),
}
"""The names that a DTensor adds to a file, in the modules of torch 2.4 to 2.13."""


@dataclass(frozen=True)
class Piece:
    """What one rank holds of a tensor."""

    local: StoredTensor
    shape: torch.Size
    """Of the whole tensor."""
    coordinate: tuple[int, ...] = ()
    """The rank's place in the device mesh; of a plain tensor none."""
    sharded: tuple[int | None, ...] = ()
    """For each dimension of the mesh the tensor's dimension that is split over it, None where it is copied."""


def piece_of(value: Any) -> Piece | None:
    """A tensor or DTensor of a state dict; None for what is neither. Raises ValueError that says why a DTensor cannot
    be put together from its pieces."""
    if isinstance(value, StoredTensor):
        return Piece(value, value.shape)
    if not isinstance(value, WrapperSubclass):
        return None
    try:
        local, spec = value.state["_local_tensor"], value.state["_spec"].state
        coordinate = tuple(spec["mesh"].state["_coordinate_on_dim"])
        sharded = tuple(map(_dimension, spec["placements"]))
        shape = torch.Size(value.arguments[2])
    except (KeyError, AttributeError, IndexError, TypeError) as error:
        raise ValueError(f"is a DTensor of unknown form ({type(error).__name__}: {error})") from error
    if len(sharded) != len(coordinate) or not isinstance(local, StoredTensor):
        raise ValueError("is a DTensor of unknown form")
    return Piece(local, shape, coordinate, sharded)


def _dimension(placement: Record) -> int | None:
    if isinstance(placement, Replicate):
        return None
    if isinstance(placement, Shard):
        found = placement.state["dim"] if placement.state else placement.arguments[0]
        if type(found) is int and found >= 0:
            return found
    raise ValueError(f"is placed as {placement!r}, which FSDP does not do")
