"""Which part of a tensor a rank holds, and whether it is the rank that sends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from verl_core.config.errors import UserError


@dataclass(frozen=True)
class Box:
    """The part [start, start + size) of every axis."""

    start: tuple[int, ...]
    size: tuple[int, ...]

    def of(self, whole: Tensor) -> Tensor:
        """A view of that part."""
        for axis, (start, size) in enumerate(zip(self.start, self.size, strict=True)):
            whole = whole.narrow(axis, start, size)
        return whole

    def note(self) -> list[Any]:
        return [list(self.start), list(self.size)]

    @classmethod
    def noted(cls, note: list[Any]) -> Box:
        return cls(tuple(note[0]), tuple(note[1]))


def own_part(name: str, tensor: Tensor) -> tuple[Tensor, Box] | None:
    """This rank's piece and its place; None where another rank sends the same piece, or the piece is empty.

    Raises:
        UserError: the placement is neither a shard nor a copy.
    """
    if not isinstance(tensor, DTensor):
        first = not dist.is_initialized() or dist.get_rank() == 0
        return (tensor, Box((0,) * tensor.ndim, tuple(tensor.shape))) if first else None
    mesh = tensor.device_mesh
    here: Sequence[int] = mesh.get_coordinate() or ()
    for placement, coordinate in zip(tensor.placements, here, strict=True):
        if isinstance(placement, Replicate) and coordinate > 0:
            return None
        if not isinstance(placement, Replicate | Shard):
            raise UserError(
                f"weights.type=delta cannot send {name}, placed as {placement}", "use weights.type=broadcast"
            )
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
    piece = tensor.to_local()
    assert tuple(piece.shape) == tuple(shape), (name, piece.shape, shape)
    return (piece, Box(tuple(offset), tuple(shape))) if piece.numel() else None
