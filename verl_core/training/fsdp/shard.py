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


def shard(network: nn.Module, mesh: DeviceMesh, dtype: torch.dtype, reshard_after_forward: bool) -> None:
    """Shards in place: parameters become DTensors on the mesh's devices (a mesh of two dimensions: replicas x shards),
    gathered in `dtype` for each layer's forward and backward. Gradients are summed over ranks (not averaged) in
    float32."""
    first = not any(mesh.get_coordinate() or ())
    full = {name: tensor.detach() for name, tensor in network.named_parameters()} if first else {}
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in decoder_layers(network):
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
        assert isinstance(parameter, DTensor)
        piece = parameter.to_local()
        whole = full[name].to(piece.device) if full else piece.new_empty(parameter.shape)
        piece.copy_(distribute_tensor(whole, mesh, parameter.placements, src_data_rank=0).to_local())
    for buffer in network.buffers():
        for dim in range(mesh.ndim):  # down the first ranks of all replicas, then within each
            dist.broadcast(buffer, group=mesh.get_group(dim), group_src=0)


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
