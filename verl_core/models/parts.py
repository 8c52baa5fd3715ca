"""What a layer computes on where ranks have a part of its matrices each (tensor parallelism): whole rows come from all
ranks' pieces of them, and the ranks' sums are added up, each rank taking its own piece (arXiv 2205.05198, section 4.2).
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor


def own(tensor: Tensor) -> Tensor:
    """This rank's piece; differentiable."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_row(piece: Tensor, group_name: str, ranks: int) -> Tensor:
    """[1, R/ranks, D] to [1, R, D]. Its gradient is `summed_piece`."""
    return cast(Tensor, torch.ops.rlx.whole_row(piece, group_name, ranks))


def summed_piece(row: Tensor, group_name: str, ranks: int) -> Tensor:
    """[1, R, D] on each rank to this rank's [1, R/ranks, D] of their sum. Its gradient is `whole_row`."""
    return cast(Tensor, torch.ops.rlx.summed_piece(row, group_name, ranks))


# Operators of their own, so that compiled layers hold them whole.


@torch.library.custom_op("rlx::whole_row", mutates_args=())
def _whole_row(piece: Tensor, group_name: str, ranks: int) -> Tensor:
    out = piece.new_empty(1, piece.shape[1] * ranks, piece.shape[2])
    dist.all_gather_into_tensor(out[0], piece[0].contiguous(), group=_group(group_name))
    return out


@torch.library.custom_op("rlx::summed_piece", mutates_args=())
def _summed_piece(row: Tensor, group_name: str, ranks: int) -> Tensor:
    out = row.new_empty(1, row.shape[1] // ranks, row.shape[2])
    dist.reduce_scatter_tensor(out[0], row[0].contiguous(), group=_group(group_name))
    return out


@_whole_row.register_fake
def _(piece: Tensor, group_name: str, ranks: int) -> Tensor:
    return piece.new_empty(1, piece.shape[1] * ranks, piece.shape[2])


@_summed_piece.register_fake
def _(row: Tensor, group_name: str, ranks: int) -> Tensor:
    return row.new_empty(1, row.shape[1] // ranks, row.shape[2])


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.group = inputs[1:]


_whole_row.register_autograd(lambda ctx, grad: (summed_piece(grad, *ctx.group), None, None), setup_context=_save)
_summed_piece.register_autograd(lambda ctx, grad: (whole_row(grad, *ctx.group), None, None), setup_context=_save)


def _group(name: str) -> dist.ProcessGroup:
    return _resolve_process_group(cast(Any, name))
