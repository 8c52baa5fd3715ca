"""Routed experts dealt out to ranks, whole ones each: to those that have whole rows (tensor parallelism), or to those
that have tokens of their own and send each to its experts' ranks and back (expert parallelism, arXiv 2006.16668)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from verl_core.config.errors import UserError
from verl_core.models.parts import own
from verl_core.models.ulysses import Split
from verl_core.training.fsdp.division import Division
from verl_core.training.fsdp.shard import decoder_layers

EXPERTS = "experts"  # transformers' name of the module that holds a layer's, stacked
type Forward = Callable[..., Tensor]


def divide_all_experts(network: nn.Module, ranks: Split, key: str) -> Division:
    """Changes the forward of every layer's experts for ranks that exchange tokens, and says which parameters are to be
    cut. Raises UserError, naming `key`, for a model without experts and for numbers that do not divide."""
    layers = decoder_layers(network)
    modules = tuple(m for name, m in layers.named_modules() if name.rpartition(".")[2] == EXPERTS)
    if not modules:
        raise UserError(f"{key}={ranks.size}: the model has no experts", f"{key}=1")
    division = Division(ranks.size, {}, modules)
    for module in modules:
        divide_experts(module, division, key)
        _exchange_tokens(module, ranks)
    return division


def divide_experts(module: nn.Module, division: Division, key: str) -> None:
    """Cuts the module's stacks of experts, and has it count its own only."""
    parameters = list(module.parameters(recurse=False))
    count: int = getattr(module, "num_experts", 0)
    if not parameters or any(len(p) != count for p in parameters):
        raise UserError(f"{key}={division.ranks}: the model's experts are not stacked", f"{key}=1")
    if count % division.ranks:
        raise UserError(f"{key}={division.ranks} does not divide the model's {count} experts", f"{key}=1")
    division.dims.update(dict.fromkeys(parameters, 0))
    module.num_experts = count // division.ranks  # type: ignore[assignment]
    module._is_expert_parallel = True  # type: ignore[assignment]  # transformers: leave out what is past the last one


def own_experts(module: nn.Module, ranks: Split) -> None:
    """Of whole rows each rank computes what its own experts add."""
    compute, count = _on_parts(module), _count(module)

    @wraps(compute)
    def forward(hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor) -> Tensor:
        expert_TK = expert_TK - ranks.rank * count
        away_TK = (expert_TK < 0) | (expert_TK >= count)
        hidden_TD, expert_TK, weight_TK = _with_blank(
            hidden_TD, expert_TK.masked_fill(away_TK, count), weight_TK.masked_fill(away_TK, 0.0), away=count
        )
        return compute(hidden_TD, expert_TK, weight_TK)[:-1]

    module.forward = forward  # type: ignore[method-assign]


def _exchange_tokens(module: nn.Module, ranks: Split) -> None:
    """Each rank sends a token once for every expert that it takes (P of them), and gets back what that makes of it.
    The host waits for the numbers in every layer."""
    compute, count = _on_parts(module), _count(module)

    @wraps(compute)
    def forward(hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor) -> Tensor:
        tokens, each = expert_TK.shape
        order_P = expert_TK.flatten().argsort(stable=True)
        sent_RE = torch.bincount(expert_TK.flatten(), minlength=ranks.size * count).view(ranks.size, count)
        got_RE = torch.empty_like(sent_RE)
        dist.all_to_all_single(got_RE, sent_RE, group=ranks.group)
        sent, got = torch.stack([sent_RE.sum(1), got_RE.sum(1)]).tolist()
        rows_MD = _exchanged(hidden_TD[order_P // each], got, sent, ranks.group)
        expert_M = torch.arange(count, device=got_RE.device).repeat(ranks.size)
        expert_M = expert_M.repeat_interleave(got_RE.flatten(), output_size=sum(got))
        rows_MD, expert_M1, one_M1 = _with_blank(rows_MD, expert_M[:, None], rows_MD.new_ones(len(rows_MD), 1))
        made_PD = _exchanged(compute(rows_MD, expert_M1, one_M1)[:-1], sent, got, ranks.group)
        made_TKD = made_PD[order_P.argsort()].view(tokens, each, -1)
        return (made_TKD * weight_TK[..., None]).sum(1).to(hidden_TD.dtype)

    module.forward = forward  # type: ignore[method-assign]


def _exchanged(x: Tensor, to_get: list[int], to_send: list[int], group: dist.ProcessGroup) -> Tensor:
    """Sends the first to_send[0] rows to the group's first rank, and so on; rows that others sent, in their order."""
    out: Tensor = _Exchange.apply(x, to_get, to_send, group)
    return out


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, to_get: list[int], to_send: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sizes, ctx.group = (to_send, to_get), group
        out = x.new_empty(sum(to_get), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), to_get, to_send, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return _Exchange.apply(grad, *ctx.sizes, ctx.group), None, None, None


def _with_blank(hidden_TD: Tensor, expert_TK: Tensor, weight_TK: Tensor, away: int = 0) -> tuple[Tensor, ...]:
    """One row of zeros more, for the first expert: every rank's experts take part in the backward pass, whatever tokens
    it got. `away`: what stands for no expert."""
    blank_1K = expert_TK.new_full((1, expert_TK.shape[1]), away)
    blank_1K[:, :1] = 0
    return (
        torch.cat([hidden_TD, hidden_TD.new_zeros(1, hidden_TD.shape[1])]),
        torch.cat([expert_TK, blank_1K]),
        torch.cat([weight_TK, weight_TK.new_zeros(1, weight_TK.shape[1])]),
    )


def _count(module: nn.Module) -> int:
    count = module.num_experts
    assert isinstance(count, int)
    return count


def _on_parts(module: nn.Module) -> Forward:
    """The module's own forward on this rank's pieces of its parameters."""
    forward: Forward = module.forward

    @contextmanager
    def pieces() -> Iterator[None]:
        """What stands in a module's __dict__ is found before its parameters."""
        names = [name for name, _ in module.named_parameters(recurse=False)]
        module.__dict__.update({name: own(module._parameters[name]) for name in names})  # type: ignore[arg-type]
        try:
            yield
        finally:
            for name in names:
                del module.__dict__[name]

    @wraps(forward)
    def on_parts(*args: Any) -> Tensor:
        with pieces():
            return forward(*args)

    return on_parts
