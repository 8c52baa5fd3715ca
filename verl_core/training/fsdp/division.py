"""Layers and experts in parts: which dimension of which parameter the ranks of a group divide among them, and what
remains to be added up over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from verl_core.models.parts import own


@dataclass(frozen=True)
class Division:
    """`ranks` ranks have a part each of the parameters in `dims` (parameter -> the dimension that is cut). `modules`
    hold them, and are what FSDP2 gathers among the ranks of one part."""

    ranks: int
    dims: dict[Tensor, int]
    modules: tuple[nn.Module, ...]

    def inside(self, layer: nn.Module) -> list[nn.Module]:
        """Those of the modules that are the layer, or in it."""
        return [module for module in layer.modules() if module in self.modules]

    def cut(self, module: nn.Module, part: DeviceMesh, device: torch.device) -> None:
        """Puts a part of this rank's, not yet filled, in the place of each parameter of `module` that is divided."""
        for child in module.modules():
            for name, parameter in child.named_parameters(recurse=False):
                if (dim := self.dims.get(parameter)) is not None:
                    shape = list(parameter.shape)
                    shape[dim] //= self.ranks
                    piece = torch.empty(shape, dtype=parameter.dtype, device=device)
                    tensor = DTensor.from_local(piece, part, [Shard(dim)], run_check=False)
                    setattr(child, name, nn.Parameter(tensor, parameter.requires_grad))


@torch.no_grad()
def add_up_over_parts(network: nn.Module, beside: DeviceMesh, part: DeviceMesh) -> None:
    """Adds up the gradients of parameters that ranks with different parts have alike (norms, routers, biases): each
    rank has what its own part says. In one collective."""
    shared = [p.grad for p in network.parameters() if isinstance(p.grad, DTensor) and p.grad.device_mesh == beside]
    if not shared:
        return
    pieces = [own(grad) for grad in shared]
    flat = torch.cat([piece.flatten() for piece in pieces])
    dist.all_reduce(flat, group=part.get_group())
    summed = flat.split([piece.numel() for piece in pieces])
    torch._foreach_copy_(pieces, [s.view_as(piece) for s, piece in zip(summed, pieces, strict=True)])


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Tensors by the mesh they lie on; torch's operators on lists take one mesh at a time."""
    groups: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        mesh = tensor.device_mesh if isinstance(tensor, DTensor) else None
        groups.setdefault(mesh, []).append(tensor)
    return list(groups.values())


def norm_over_meshes(groups: list[list[Tensor]]) -> Tensor:
    """The 2-norm of tensors on several meshes of the same ranks, by one sum over those that share a copy: every rank
    adds what it holds, and of what ranks with different parts have alike its share."""
    meshes = [cast(DTensor, group[0]).device_mesh for group in groups]
    ranks = max(mesh.size() for mesh in meshes)
    whole = min((mesh for mesh in meshes if mesh.size() == ranks), key=lambda mesh: mesh.ndim)
    norms = torch.stack([nn.utils.get_total_norm([own(tensor) for tensor in group]) for group in groups])
    shares = norms.new_tensor([mesh.size() / ranks for mesh in meshes])
    square = (norms.square() * shares).sum()
    dist.all_reduce(square, group=whole.get_group(-1))
    return square.sqrt()
