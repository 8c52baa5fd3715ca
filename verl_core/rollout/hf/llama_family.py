"""The fast decoder: Llama, Qwen2, Qwen2.5, Qwen3 and Mistral in plain torch.

These models are one model with options: grouped-query attention, biases or none, norms on queries and keys or none, a
sliding window or none, a tied or an untied head. The decoder reads each from the configuration or from which weights
came, and fuses what a decode step would otherwise launch apart (q, k, v; gate, up).

Attention of a decode step: in half precision scaled_dot_product_attention, which keeps its scores in float32; in
float32 two plain products over keys stored [K, D, L] and values stored [K, L, D], which read the cache in long rows (on
a CPU with short sequences 1.6 times faster, with the same result).

Shapes: B rows, P prompts, T tokens of a prompt, L positions looked at, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from verl_core.rollout.hf.cache import Prefix, SlotCache, aligned

MODEL_TYPES = frozenset({"llama", "qwen2", "qwen3", "mistral"})
ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})  # those whose frequencies do not depend on the length


def is_llama_family(config: Any) -> bool:
    """Whether this decoder computes what the model computes; if not, the generic one runs the model's own code."""
    rope = config.rope_parameters if hasattr(config, "rope_parameters") else None
    if config.model_type not in MODEL_TYPES or not rope or rope.get("rope_type", "default") not in ROPE_TYPES:
        return False
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    whole_head = rope.get("partial_rotary_factor", 1.0) in (None, 1.0)
    return whole_head and layer_types <= {"full_attention", "sliding_attention"}


@dataclass
class Layer:
    """One layer's weights; a bias or norm the model lacks is None."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    window: int | None  # how many positions it looks back on, itself included; None: all


class LlamaDecoder:
    """Runs prompts (`prefill`) and single tokens (`decode`). `load` comes first.

    Args:
        config: transformers configuration for which `is_llama_family` holds.
        max_model_len: longest sequence, tokens; the rotary table is made for it.
    """

    capturable = True

    def __init__(self, config: Any, device: torch.device, dtype: torch.dtype, max_model_len: int):
        self.config = config
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.products = dtype == torch.float32
        self.activation = ACT2FN[config.hidden_act]
        self.layers: list[Layer] = []
        self.fused: dict[str, Tensor] = {}  # by the name of their first part
        rotary = LlamaRotaryEmbedding(config)
        angle_LD = torch.outer(torch.arange(aligned(max_model_len)).float(), rotary.inv_freq.float()).repeat(1, 2)
        sign_D = torch.ones(self.head_dim)
        sign_D[: self.head_dim // 2] = -1.0  # rotating by halves is a roll whose first half changes sign
        self.cos_LD = (angle_LD.cos() * rotary.attention_scaling).to(device, dtype)
        self.sin_LD = (angle_LD.sin() * rotary.attention_scaling * sign_D).to(device, dtype)

    def load(self, weights: dict[str, Tensor]) -> None:
        """Takes the model's weights by name. All but the fused ones are used where they lie; the fused ones stay where
        they are from the second time on."""
        self.embed = weights["model.embed_tokens.weight"]
        self.head = self.embed if self.config.tie_word_embeddings else weights["lm_head.weight"]
        self.norm = weights["model.norm.weight"]
        self.layers = [self._layer(weights, i) for i in range(self.config.num_hidden_layers)]

    def copies(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """What is used in place of these weights: the parts of the fused ones, by name."""
        found: dict[str, Tensor] = {}
        for first, joined in self.fused.items():
            old = ".q_proj." if ".q_proj." in first else ".gate_proj."
            kinds = ("q", "k", "v") if old == ".q_proj." else ("gate", "up")
            names = [first.replace(old, f".{kind}_proj.") for kind in kinds]
            found |= zip(names, joined.split([len(weights[name]) for name in names]), strict=True)
        return found

    def addresses(self) -> tuple[int, ...]:
        """Where each weight lies."""
        held = [self.embed, self.head, self.norm, *(value for layer in self.layers for value in vars(layer).values())]
        return tuple(value.data_ptr() for value in held if isinstance(value, Tensor))

    def _layer(self, weights: dict[str, Tensor], index: int) -> Layer:
        at = f"model.layers.{index}."

        def fused(*names: str) -> Tensor | None:
            if at + names[0] not in weights:
                return None
            key = at + names[0]
            joined = torch.cat([weights[at + name] for name in names], out=self.fused.get(key))
            return self.fused.setdefault(key, joined)

        attn, mlp = "self_attn.{}_proj.{}", "mlp.{}_proj.{}"
        qkv, qkv_bias = (fused(*(attn.format(n, kind) for n in "qkv")) for kind in ("weight", "bias"))
        gate_up, gate_up_bias = (fused(*(mlp.format(n, kind) for n in ("gate", "up"))) for kind in ("weight", "bias"))
        assert qkv is not None and gate_up is not None
        return Layer(
            input_norm=weights[at + "input_layernorm.weight"],
            qkv=qkv,
            qkv_bias=qkv_bias,
            q_norm=weights.get(at + "self_attn.q_norm.weight"),
            k_norm=weights.get(at + "self_attn.k_norm.weight"),
            out=weights[at + "self_attn.o_proj.weight"],
            out_bias=weights.get(at + "self_attn.o_proj.bias"),
            mlp_norm=weights[at + "post_attention_layernorm.weight"],
            gate_up=gate_up,
            gate_up_bias=gate_up_bias,
            down=weights[at + "mlp.down_proj.weight"],
            down_bias=weights.get(at + "mlp.down_proj.bias"),
            window=self._window(index),
        )

    def _window(self, index: int) -> int | None:
        layer_types = getattr(self.config, "layer_types", None)
        if layer_types is not None and layer_types[index] == "full_attention":
            return None
        return getattr(self.config, "sliding_window", None)

    def prefill(self, ids_PT: Tensor, length_P: Tensor) -> Prefix:
        """Runs whole prompts, padded on the right: causal attention keeps the padding from every real token.

        Returns the cache planes, keys and values of each layer, [P, T, K, D], and the logits [P, V] at each prompt's
        last token.
        """
        P, T = ids_PT.shape
        position_T = torch.arange(T, device=ids_PT.device)
        masks = {layer.window: self._band(position_T, layer.window) for layer in self.layers}
        planes = []

        def attend(layer: Layer, qkv: Tensor) -> Tensor:
            q, k, v = qkv.view(P, T, -1, self.head_dim).split([self.heads, self.kv_heads, self.kv_heads], dim=2)
            planes.extend([_stored(k, 2, 3, 1), _stored(v, 2, 1, 3)] if self.products else [k, v])
            out = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                attn_mask=masks[layer.window],
                is_causal=masks[layer.window] is None,
                enable_gqa=self.heads != self.kv_heads,
            )
            return out.transpose(1, 2).reshape(P * T, -1)

        x = self._run(ids_PT.flatten(), position_T.repeat(P), attend).view(P, T, -1)
        last_P = x[torch.arange(P, device=x.device), length_P - 1]
        return Prefix(planes, self._logits(last_P))

    def decode(self, ids_B: Tensor, position_B: Tensor, length: int, cache: SlotCache) -> Tensor:
        """One token for each of the first B slots, written to the cache at its position. `length` is past the largest
        position, a multiple of 8. Returns logits [B, V]."""
        B = len(ids_B)
        row_B = torch.arange(B, device=ids_B.device)
        masks = {layer.window: self._reach(position_B, length, layer.window) for layer in self.layers}
        planes = iter(cache.planes)
        sizes = [self.heads, self.kv_heads, self.kv_heads]

        def attend(layer: Layer, qkv: Tensor) -> Tensor:
            keys, values = next(planes), next(planes)
            q, keys[row_B, position_B], values[row_B, position_B] = qkv.split(sizes, dim=1)
            # The query heads that share a key head stand in for query positions: no key is repeated.
            q = q.reshape(B, self.kv_heads, -1, self.head_dim)
            k, v = keys[:B, :length].transpose(1, 2), values[:B, :length].transpose(1, 2)
            if self.products:
                score = torch.matmul(q * self.head_dim**-0.5, k.mT).add_(masks[layer.window])
                return torch.matmul(score.softmax(-1), v).reshape(B, -1)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=masks[layer.window]).reshape(B, -1)

        return self._logits(self._run(ids_B, position_B, attend))

    def _run(self, ids_N: Tensor, position_N: Tensor, attend: Any) -> Tensor:
        """Embedding and layers for N tokens, [N, hidden]; `attend(layer, qkv [N, H+2K, D])` returns [N, H*D]."""
        cos = self.cos_LD.index_select(0, position_N)[:, None]
        sin = self.sin_LD.index_select(0, position_N)[:, None]
        rotated = self.heads + self.kv_heads
        x = F.embedding(ids_N, self.embed)
        for layer in self.layers:
            h = F.rms_norm(x, x.shape[-1:], layer.input_norm, self.eps)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(len(ids_N), -1, self.head_dim)
            qk = qkv[:, :rotated]
            if layer.q_norm is not None:
                q, k = qk.split([self.heads, self.kv_heads], dim=1)
                q = F.rms_norm(q, q.shape[-1:], layer.q_norm, self.eps)
                k = F.rms_norm(k, k.shape[-1:], layer.k_norm, self.eps)
                qk = torch.cat([q, k], dim=1)
            qkv[:, :rotated] = torch.addcmul(qk * cos, qk.roll(self.head_dim // 2, -1), sin)
            x = x + F.linear(attend(layer, qkv), layer.out, layer.out_bias)
            h = F.rms_norm(x, x.shape[-1:], layer.mlp_norm, self.eps)
            gate, up = F.linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            x = x + F.linear(self.activation(gate) * up, layer.down, layer.down_bias)
        return x

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(F.rms_norm(x, x.shape[-1:], self.norm, self.eps), self.head)

    def _band(self, position_T: Tensor, window: int | None) -> Tensor | None:
        """Which positions each position of a prompt sees, [T, T]; None for plain causal attention."""
        if window is None or window >= len(position_T):
            return None
        back_TT = position_T[:, None] - position_T
        return (back_TT >= 0) & (back_TT < window)

    def _reach(self, position_B: Tensor, length: int, window: int | None) -> Tensor:
        """Additive mask of the cached positions that each row's token sees, [B, 1, 1, L]."""
        back_BL = position_B[:, None] - torch.arange(length, device=position_B.device)
        hidden_BL = (back_BL < 0) if window is None else (back_BL < 0) | (back_BL >= window)
        mask_BL = torch.zeros(back_BL.shape, dtype=self.cos_LD.dtype, device=position_B.device)
        return mask_BL.masked_fill_(hidden_BL, float("-inf"))[:, None, None]


def _stored(x: Tensor, *order: int) -> Tensor:
    """The same tensor [P, T, K, D] with its last three axes in this order in memory, the last one innermost."""
    stored = x.permute(0, *order).contiguous()
    return stored.permute(0, *(1 + order.index(axis) for axis in (1, 2, 3)))
