"""Cutting a network over ranks with FSDP2: one group a decoder layer, the rest (embeddings, norm, output layer) with
the root. Rank 0 reads the weights; the others are sent their pieces."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from verl_core.config.errors import UserError
from verl_core.training.fsdp.division import Division
from verl_core.training.fsdp.mesh import Meshes


def shard(
    network: nn.Module,
    meshes: Meshes,
    division: Division | None,
    dtype: torch.dtype,
    reshard_after_forward: bool,
    device: torch.device,
) -> None:
    """Shards in place: parameters become DTensors on `device`, over all ranks of the mesh or, in the modules that are
    divided into parts, over those that have the same part; gathered in `dtype` for each layer's forward and backward.
    Gradients are summed over ranks (not averaged) in float32."""
    mesh = meshes.whole
    first = not any(mesh.get_coordinate() or ())
    full = {name: tensor.detach() for name, tensor in network.named_parameters()} if first else {}
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in decoder_layers(network):
        if division and meshes.beside and meshes.part:
            for inner in division.inside(layer):
                division.cut(inner, meshes.part, device)
                fully_shard(inner, mesh=meshes.beside, mp_policy=policy, reshard_after_forward=reshard_after_forward)
        if not isinstance(layer, FSDPModule):
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    fully_shard(network, mesh=mesh, mp_policy=policy)
    for module in fsdp_modules(network):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo and NCCL alike
    if mesh.size() > 1:
        _send_weights(network, full, mesh)


@torch.no_grad()
def _send_weights(network: nn.Module, full: dict[str, Tensor], mesh: DeviceMesh) -> None:
    """Gives every rank its pieces of rank 0's parameters, and rank 0's buffers."""
    for name, parameter in network.named_parameters():
        piece = local(parameter)
        whole = full[name].to(piece.device) if full else piece.new_empty(parameter.shape)
        _send(whole, mesh)
        copy_into(parameter, whole)
    for buffer in network.buffers():
        _send(buffer, mesh)


def _send(tensor: Tensor, mesh: DeviceMesh) -> None:
    """Rank 0's to all: down the first ranks of all replicas, then within each."""
    for dim in range(mesh.ndim):
        dist.broadcast(tensor, group=mesh.get_group(dim), group_src=0)


@torch.no_grad()
def copy_into(target: Tensor, value: Tensor) -> None:
    """Copies between tensors of any placement; a plain `value` holds the whole tensor on every rank."""
    if not isinstance(target, DTensor):
        target.copy_(value.full_tensor() if isinstance(value, DTensor) else value)
        return
    mesh, placements = target.device_mesh, target.placements
    if not (isinstance(value, DTensor) and value.device_mesh == mesh and value.placements == placements):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        value = distribute_tensor(whole.to(target.device), mesh, placements, src_data_rank=None)
    target.to_local().copy_(value.to_local().to(target.device))  # 8-bit state is made on its own device


def decoder_layers(network: nn.Module) -> nn.ModuleList:
    """The stack of decoder layers: the largest ModuleList of one class. Raises UserError when the model has none."""
    lists = [m for m in network.modules() if isinstance(m, nn.ModuleList) and len({type(x) for x in m}) == 1]
    if not lists:
        raise UserError("the model has no list of decoder layers to shard", hint="choose a transformer language model")
    return max(lists, key=lambda m: sum(p.numel() for p in m.parameters()))


def fsdp_modules(network: nn.Module) -> Iterator[FSDPModule]:
    """The network's sharded modules; none when it runs unsharded."""
    return (m for m in network.modules() if isinstance(m, FSDPModule))


def reduces_in_backward(network: nn.Module, sync: bool, last: bool) -> None:
    """Whether the next backward pass reduces gradients over the ranks that share a copy of the parameters; replicas add
    theirs up in the last one of a mini-batch only."""
    for module in fsdp_modules(network):
        module.set_requires_gradient_sync(sync, recurse=False)
        module.set_requires_all_reduce(last, recurse=False)


def reshard(network: nn.Module) -> None:
    """Frees gathered parameters. Needed after a forward without backward: the root keeps its own gathered, and would
    not see later changes of the sharded ones."""
    for module in fsdp_modules(network):
        module.reshard()


def local(tensor: Tensor) -> Tensor:
    """This rank's piece."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full(tensor: Tensor) -> Tensor:
    """The tensor gathered; one that is not sharded is itself. Collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
