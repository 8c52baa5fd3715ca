"""Tensor parallelism (arXiv 1909.08053) with rows split between layers (arXiv 2205.05198, section 4.2): ranks have a
part each of a layer's matrices, cut as the tensor-parallel plan of transformers' model says, and of the tokens
everywhere else. Attention and feed-forward gather the whole row, compute on their part, and add up over ranks.

Whatever lies between gathering and adding up sees a share of the sum on each rank, so that gradients of what all ranks
have alike add up as well, and nothing is computed twice. Routed experts are dealt out whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from verl_core.config.errors import UserError
from verl_core.models.parts import own, summed_piece, whole_row
from verl_core.models.ulysses import Split
from verl_core.planning.divisions import undivided_heads
from verl_core.training.fsdp.division import Division
from verl_core.training.fsdp.experts import EXPERTS, divide_experts, own_experts
from verl_core.training.fsdp.shard import decoder_layers

COLUMNS, ROWS = frozenset({"colwise", "local_colwise"}), frozenset({"rowwise", "local_rowwise"})
ALIKE = frozenset({"replicated_with_grad_allreduce"})  # all ranks have it, each with a share of its gradient
ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
PLAIN = "choose a model whose plan cuts columns and rows, e.g. Qwen2, Qwen3, Llama or Gemma"


def divide_layers(network: nn.Module, config: Any, ranks: Split, key: str) -> Division:
    """Changes the decoder layers' forwards for ranks that have a part each, and says which parameters are to be cut.
    Raises UserError, naming `key`, for an architecture without such a plan and for sizes that do not divide."""
    text = config.get_text_config()
    fault = f"{key}={ranks.size}: transformers' plan of {config.model_type!r}"
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    for uneven in undivided_heads(key, ranks.size, text.num_attention_heads, kv_heads):
        raise UserError(uneven, f"{key}=1, or a number of ranks that divides them")
    plan = {
        name.removeprefix("layers.*."): style
        for name, style in (getattr(text, "base_model_tp_plan", None) or {}).items()
        if name.startswith("layers.*.")
    }
    if not plan:
        raise UserError(f"{fault} has no layers", PLAIN)
    division = Division(ranks.size, {}, tuple(decoder_layers(network)))
    for layer in division.modules:
        _divide_layer(layer, plan, ranks, division, key, fault)
    return division


def _divide_layer(
    layer: nn.Module, plan: dict[str, str], ranks: Split, division: Division, key: str, fault: str
) -> None:
    whole = set()  # children of the layer that work on whole rows
    for name, module in layer.named_modules():
        style = _style(plan, name)
        if name.rpartition(".")[2] == EXPERTS and (style or any(n.startswith(f"{name}.") for n in plan)):
            divide_experts(module, division, key)
            own_experts(module, ranks)
        elif style in COLUMNS | ROWS and type(module) is nn.Linear:
            (_divide_columns if style in COLUMNS else _divide_rows)(module, division, f"{key}: {name}")
        elif style is not None and style not in ALIKE:
            raise UserError(f"{fault} has {style!r} for {name}", PLAIN)
        else:
            continue
        whole.add(name.partition(".")[0])
    for child, module in layer.named_children():
        if child not in whole and any(parameter.ndim > 1 for parameter in module.parameters()):  # more than a norm
            raise UserError(f"{fault} does not name {child}", PLAIN)
    for child in whole:
        _check_all_divided(layer.get_submodule(child), plan, child, division, fault)
        _on_whole_rows(layer.get_submodule(child), ranks)


def _style(plan: dict[str, str], name: str) -> str | None:
    """A module's. A shared expert, which plans may leave out, is cut as the feed-forward of layers without experts."""
    return plan.get(name) or plan.get(name.replace("shared_expert.", ""))


def _divide_columns(layer: nn.Linear, division: Division, what: str) -> None:
    _check(layer.out_features, division, what)
    layer.out_features //= division.ranks
    division.dims[layer.weight] = 0
    if layer.bias is not None:
        division.dims[layer.bias] = 0
    layer.forward = partial(_columns, layer)  # type: ignore[method-assign]


def _divide_rows(layer: nn.Linear, division: Division, what: str) -> None:
    _check(layer.in_features, division, what)
    layer.in_features //= division.ranks
    division.dims[layer.weight] = 1
    layer.forward = partial(_rows, layer, division.ranks)  # type: ignore[method-assign]


def _columns(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, own(layer.weight), None if layer.bias is None else own(layer.bias))


def _rows(layer: nn.Linear, ranks: int, x: Tensor) -> Tensor:
    """A rank's share of the sum; of the bias as well."""
    return F.linear(x, own(layer.weight), None if layer.bias is None else layer.bias / ranks)


def _on_whole_rows(module: nn.Module, ranks: Split) -> None:
    forward: Callable[..., Any] = module.forward

    @wraps(forward)
    def on_whole_rows(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        out = forward(whole_row(hidden_states, ranks.name, ranks.size), *args, **kwargs)
        first, *rest = out if isinstance(out, tuple) else (out,)
        piece = summed_piece(first, ranks.name, ranks.size)
        return (piece, *rest) if isinstance(out, tuple) else piece

    module.forward = on_whole_rows  # type: ignore[method-assign]


def _check_all_divided(module: nn.Module, plan: dict[str, str], place: str, division: Division, fault: str) -> None:
    """What is not divided must not add to the sum, on each rank once more: norms of heads and routers do not."""
    for name, child in module.named_modules():
        path = f"{place}.{name}" if name else place
        alike = _style(plan, path) in ALIKE or path.rpartition(".")[2] in ROUTERS
        for parameter, tensor in child.named_parameters(recurse=False):
            biased_rows = parameter == "bias" and _style(plan, path) in ROWS
            if tensor not in division.dims and not alike and not biased_rows:
                raise UserError(f"{fault} does not name {path}.{parameter}", PLAIN)


def _check(size: int, division: Division, what: str) -> None:
    if size % division.ranks:
        raise UserError(f"{what}: {division.ranks} ranks do not divide its {size} columns", "choose fewer ranks")
