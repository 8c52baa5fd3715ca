"""Hugging Face tensors out of megatron-core's GPTModel: Llama, Qwen2, Qwen3 and their mixtures of experts.

megatron-core joins what Hugging Face has apart (megatron/core/transformer/{attention,mlp}.py, models/gpt):

- `linear_qkv`: for every group of query heads its queries, then its key head, then its value head;
- `linear_fc1` of a gated network: all gate rows, then all up rows;
- all layers of a model, unless the names have their numbers, and all experts of a layer are one tensor with axes for
  layers and experts in front.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_OUTSIDE = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
_WHOLE = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.shared_experts.linear_fc2.weight": "mlp.shared_expert.down_proj.weight",
    "mlp.shared_experts.gate_weight": "mlp.shared_expert_gate.weight",
}
_GATED = {
    "mlp.linear_fc1.weight": "mlp.",
    "mlp.shared_experts.linear_fc1.weight": "mlp.shared_expert.",
}
_EXPERTS = "mlp.experts.experts."
_LAYER = re.compile(r"decoder\.layers\.(?:(\d+)\.)?(.+)")


class Unmapped(Exception):
    """A tensor that has no place in the Hugging Face model; the text says why."""


@dataclass(frozen=True)
class Part:
    """The rows of a Hugging Face tensor in a stored one."""

    key: str
    lead: tuple[int, ...]
    """Index on the axes of layers and experts."""
    shape: torch.Size
    """Of the stored tensor without these axes."""
    runs: tuple[tuple[int, int], ...]
    """(first row, number of rows), in the order of the Hugging Face tensor."""


@dataclass(frozen=True)
class Heads:
    """Of attention, as the config tells them."""

    query: int
    groups: int
    size: int

    @staticmethod
    def of(config: Mapping[str, Any]) -> Heads:
        """Raises KeyError for a config without heads."""
        query = config["num_attention_heads"]
        size = config.get("head_dim") or config["hidden_size"] // query
        return Heads(query, config.get("num_key_value_heads") or query, size)


def parts_of(key: str, shape: torch.Size, heads: Heads) -> Iterator[tuple[str, Part]]:
    """The Hugging Face tensors that a stored one holds. Raises Unmapped."""
    if key in _OUTSIDE:
        yield _OUTSIDE[key], Part(key, (), shape, ((0, shape[0]),))
        return
    match = _LAYER.fullmatch(key)
    if match is None:
        raise Unmapped(f"{key} is unknown")
    inner, layers = (shape, (int(match[1]),)) if match[1] else (shape[1:], range(shape[0]))
    for number, layer in enumerate(layers):
        lead = () if match[1] else (number,)
        for name, lead_below, below, runs in _in_layer(match[2], inner, heads):
            yield f"model.layers.{layer}.{name}", Part(key, lead + lead_below, below, runs)


_Runs = tuple[tuple[int, int], ...]


def _in_layer(rest: str, shape: torch.Size, heads: Heads) -> Iterator[tuple[str, tuple[int, ...], torch.Size, _Runs]]:
    """Name in the layer, index of the expert, shape of one, rows."""
    if rest in (f"{_EXPERTS}linear_fc1.weight", f"{_EXPERTS}linear_fc2.weight"):
        of_one = f"mlp.{rest.removeprefix(_EXPERTS)}"  # named as a layer without experts names it
        for expert in range(shape[0]):
            for name, _, inner, runs in _in_layer(of_one, shape[1:], heads):
                yield name.replace("mlp.", f"mlp.experts.{expert}."), (expert,), inner, runs
    elif rest in _WHOLE:
        yield _WHOLE[rest], (), shape, ((0, shape[0]),)
    elif rest in _GATED:
        for name, runs in _gate_and_up(shape[0], rest):
            yield f"{_GATED[rest]}{name}_proj.weight", (), shape, runs
    elif rest in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        for name, runs in _attention(shape[0], heads, rest):
            yield f"self_attn.{name}_proj.{rest.rpartition('.')[2]}", (), shape, runs
    else:
        raise Unmapped(f"{rest} of decoder.layers is unknown")


def _gate_and_up(rows: int, rest: str) -> Iterator[tuple[str, _Runs]]:
    if rows % 2:
        raise Unmapped(f"{rest} has {rows} rows, which are not gate and up rows")
    yield "gate", ((0, rows // 2),)
    yield "up", ((rows // 2, rows // 2),)


def _attention(rows: int, heads: Heads, rest: str) -> Iterator[tuple[str, _Runs]]:
    queries = heads.query // heads.groups * heads.size  # rows of a group
    group = queries + 2 * heads.size
    if rows != heads.groups * group:
        raise Unmapped(
            f"{rest} has {rows} rows, the config's {heads.query} heads in {heads.groups} groups of size {heads.size} "
            f"take {heads.groups * group}"
        )
    for name, first, count in (("q", 0, queries), ("k", queries, heads.size), ("v", queries + heads.size, heads.size)):
        yield name, tuple((index * group + first, count) for index in range(heads.groups))
