"""Ulysses sequence parallelism (arXiv 2309.14509): the ranks of a group work on the same packed row, each on an equal
piece of its tokens. Only attention looks across tokens, and there a rank has the whole row for its share of the heads:
one exchange between the ranks of the group turns pieces of tokens into shares of heads, another turns them back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _resolve_process_group

from verl_core.config.errors import UserError
from verl_core.planning.divisions import uneven_heads

type Attention = Callable[..., tuple[Tensor, None]]


class Split:
    """This rank's part in a group that splits its rows: rank r of s has the tokens [r R/s, (r+1) R/s) of a row of R.
    `gathers`: layers put whole rows together by themselves (tensor parallelism), and attention has nothing to exchange.
    """

    def __init__(self, group: dist.ProcessGroup, gathers: bool = False):
        self.group, self.gathers = group, gathers
        self.name: str = group.group_name  # what a compiled layer can carry
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def piece(self, row: int) -> tuple[int, int]:
        """Where the rank's tokens begin and end in a row whose length the ranks divide."""
        return self.rank * row // self.size, (self.rank + 1) * row // self.size

    def to_heads(self, x: Tensor) -> Tensor:
        """[1, H, R/s, D], all heads of the rank's tokens, to [1, H/s, R, D], its heads of all tokens. Where there are
        fewer heads than ranks, neighbours get the same one, and its gradients add up."""
        x_NHD = x[0].transpose(0, 1)
        if (heads := x_NHD.shape[1]) < self.size:
            x_NHD = x_NHD.repeat_interleave(self.size // heads, 1)
        return self._exchange(x_NHD.unflatten(1, (self.size, -1)).transpose(0, 1)).flatten(0, 1).transpose(0, 1)[None]

    def to_tokens(self, x: Tensor) -> Tensor:
        """[1, R, H/s, D] to [1, R/s, H, D]: the inverse."""
        return self._exchange(x[0].unflatten(0, (self.size, -1))).transpose(0, 1).flatten(1, 2)[None]

    def _exchange(self, x: Tensor) -> Tensor:
        return cast(Tensor, torch.ops.rlx.exchange(x, self.name))

    def joined(self, x_N: Tensor) -> Tensor:
        """A quantity of the whole row on every rank, from one that is 0 where another rank's tokens are. Each rank then
        computes the whole loss of the row, and takes from it the gradient of its own tokens."""
        return cast(Tensor, _Joined.apply(x_N, self.group))


class _Joined(torch.autograd.Function):
    """The sum over ranks; its gradient is what this rank's loss says, since all of them compute the same one."""

    @staticmethod
    def forward(ctx: Any, x_N: Tensor, group: dist.ProcessGroup) -> Tensor:
        whole_N = x_N.clone()
        dist.all_reduce(whole_N, group=group)
        return whole_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad_N, None


@torch.library.custom_op("rlx::exchange", mutates_args=())
def _exchange(x: Tensor, group_name: str) -> Tensor:
    """Sends x[j] to rank j of the group; out[j] is what rank j sent here. An operator of its own, so that compiled
    layers hold it whole."""
    x = x.contiguous()
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x, group=_resolve_process_group(cast(Any, group_name)))
    return out


@_exchange.register_fake
def _(x: Tensor, group_name: str) -> Tensor:
    return x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.group_name = inputs[1]


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return torch.ops.rlx.exchange(grad, ctx.group_name), None


_exchange.register_autograd(_gradient, setup_context=_save)


def over_split_rows(attention: Attention) -> Attention:
    """The attention function, given whole rows where `packing` says that ranks split them."""

    @wraps(attention)
    def split(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any):  # type: ignore[no-untyped-def]
        ranks: Split | None = getattr(options.get("packing"), "split", None)
        if ranks is None:
            return attention(module, query, key, value, mask, **options)
        query, key, value = (ranks.to_heads(x) for x in (query, key, value))
        out, _ = attention(module, query, key, value, mask, **options)
        return ranks.to_tokens(out), None

    return split


def check_heads(config: Any, key: str, ranks: int) -> None:
    """Raises UserError when so many ranks cannot share the attention heads of a transformers configuration."""
    text = config.get_text_config()
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    for fault in uneven_heads(key, ranks, text.num_attention_heads, kv_heads):
        raise UserError(fault, f"{key}=1, or a number of ranks that divides both")
