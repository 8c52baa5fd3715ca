"""A decoder's shape, and how many parameters that is. Reads a config.json's values; holds no weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from verl_core.config.errors import UserError
from verl_core.config.typed import show

# model_type -> what its config.json does not say
FAMILIES: dict[str, dict[str, bool]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "qwen2": {"qkv_bias": True},
    "qwen2_moe": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "gemma2": {"sandwich_norms": True},
    "gemma3_text": {"sandwich_norms": True, "qk_norm": True},
}

MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What all of them call the matrices of a layer, routed experts aside."""

LARGEST, MOST_LAYERS = 10**9, 10_000
"""What a size of a model can be: far above all there are, and low enough to be counted through at once."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder with gated feed-forward layers. Counts are per layer where they can be."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Width of a dense feed-forward layer."""
    vocab: int
    tied: bool
    """The output layer is the embedding."""
    experts: int = 0
    """Experts a layer; 0: dense."""
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_expert_ffn: int = 0
    """Width of the expert that every token takes; 0: none."""
    first_dense_layers: int = 0
    """Layers at the start that are dense although the model has experts."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sandwich_norms: bool = False
    """Four norms a layer instead of two (Gemma 2 and 3)."""
    sliding_window: int | None = None
    """Tokens that the windowed layers look back on."""
    windowed_layers: int = 0
    max_positions: int = 0
    """Longest sequence the model was made for; 0: not known."""

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of keys, and of values."""
        return self.kv_heads * self.head_dim

    def has_experts(self, layer: int) -> bool:
        return self.experts > 0 and layer >= self.first_dense_layers

    @property
    def attention_params(self) -> int:
        """Attention and norms of one layer."""
        matrices = self.hidden * (2 * self.q_width + 2 * self.kv_width)
        bias = (self.q_width + 2 * self.kv_width) * self.qkv_bias + self.hidden * self.out_bias
        norms = self.hidden * (4 if self.sandwich_norms else 2) + 2 * self.head_dim * self.qk_norm
        return matrices + bias + norms

    @property
    def one_expert_params(self) -> int:
        return 3 * self.hidden * self.expert_ffn

    def expert_params(self, layer: int) -> int:
        """Routed experts of a layer: what expert parallelism spreads."""
        return self.experts * self.one_expert_params if self.has_experts(layer) else 0

    def common_params(self, layer: int) -> int:
        """All of a layer but its routed experts."""
        if not self.has_experts(layer):
            return self.attention_params + 3 * self.hidden * self.ffn
        shared = 3 * self.hidden * self.shared_expert_ffn + (self.hidden if self.shared_expert_ffn else 0)
        return self.attention_params + self.hidden * self.experts + shared

    def layer_params(self, layer: int) -> int:
        return self.common_params(layer) + self.expert_params(layer)

    @property
    def largest_layer(self) -> int:
        return self.layer_params(self.layers - 1) if self.experts else self.layer_params(0)

    @property
    def embedding_params(self) -> int:
        return self.vocab * self.hidden

    @property
    def head_params(self) -> int:
        """The output layer's own; 0 when tied."""
        return 0 if self.tied else self.embedding_params

    @property
    def layers_params(self) -> int:
        return sum(self.layer_params(i) for i in range(self.layers))

    @property
    def params(self) -> int:
        """The whole language model."""
        return self.layers_params + self.embedding_params + self.hidden + self.head_params

    @property
    def active_layers_params(self) -> int:
        """Parameters of all layers that one token passes."""
        active = self.experts_per_token * self.one_expert_params
        return sum(self.common_params(i) + (active if self.has_experts(i) else 0) for i in range(self.layers))

    @property
    def active_params(self) -> int:
        return self.active_layers_params + self.params - self.layers_params

    def lora_params(self, rank: int, targets: str | list[str]) -> int:
        """Parameters of a low-rank adapter, (in + out) x rank a matrix (arXiv 2106.09685, section 4.1). Routed experts
        are no linear layers (transformers stacks them) and get none. A target counts in every layer by its last part.
        """
        d, q, kv = self.hidden, self.q_width, self.kv_width
        ends = [target.rpartition(".")[2] for target in ([targets] if isinstance(targets, str) else targets)]
        attention = {"q_proj": d + q, "k_proj": d + kv, "v_proj": d + kv, "o_proj": q + d}

        def wanted(widths: Mapping[str, int]) -> int:
            return sum(size for name, size in widths.items() if "all-linear" in ends or name in ends)

        def feed_forward(width: int) -> int:
            return wanted({"gate_proj": d + width, "up_proj": d + width, "down_proj": width + d})

        total = 0
        for i in range(self.layers):
            width = self.shared_expert_ffn if self.has_experts(i) else self.ffn
            total += wanted(attention) + (feed_forward(width) if width else 0)
        return rank * total

    def remembered(self, length: int) -> float:
        """Tokens whose keys and values a sequence of `length` keeps, as a mean over layers: windowed ones forget."""
        if not self.sliding_window:
            return length
        windowed = self.windowed_layers * min(length, self.sliding_window)
        return (windowed + (self.layers - self.windowed_layers) * length) / self.layers


def shape_from(values: Mapping[str, Any], place: str) -> ModelShape:
    """The shape that a config.json's values describe.

    Raises UserError naming `place` for an architecture that is not known here, and for sizes that are missing or that
    no model has.
    """
    inner = values.get("text_config")
    values = inner if isinstance(inner, Mapping) else values
    kind = values.get("model_type")
    if kind not in list(FAMILIES):  # a list: what a hostile file has may not be hashable
        raise UserError(
            f"{place}: model_type {kind!r} is no architecture that plans know",
            f"known are {', '.join(FAMILIES)}",
        )
    try:
        return _shape(values, FAMILIES[kind])
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{place}: no model has this configuration: {error}", "give the config.json of a model"
        ) from error


def _shape(values: Mapping[str, Any], family: Mapping[str, bool]) -> ModelShape:
    heads, hidden = _size(values, "num_attention_heads"), _size(values, "hidden_size")
    layers, ffn = _size(values, "num_hidden_layers", most=MOST_LAYERS), _size(values, "intermediate_size")
    kv_heads = _size(values, "num_key_value_heads", 0) or heads
    if heads % kv_heads:
        raise ValueError(f"num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}")
    bias = bool(values.get("attention_bias", False))
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_size(values, "head_dim", 0) or max(1, hidden // heads),
        ffn=ffn,
        vocab=_size(values, "vocab_size"),
        tied=bool(values.get("tie_word_embeddings", "sandwich_norms" in family)),
        qkv_bias=bias or family.get("qkv_bias", False),
        out_bias=bias,
        qk_norm=family.get("qk_norm", False),
        sandwich_norms=family.get("sandwich_norms", False),
        max_positions=_size(values, "max_position_embeddings", 0) if longest_sequence(values) is not None else 0,
    )
    if experts := _size(values, "num_experts", 0) or _size(values, "num_local_experts", 0):
        shape = replace(
            shape,
            experts=experts,
            experts_per_token=_size(values, "num_experts_per_tok", most=experts),
            expert_ffn=_size(values, "moe_intermediate_size", 0) or ffn,
            shared_expert_ffn=_size(values, "shared_expert_intermediate_size", 0),
            first_dense_layers=len(values.get("mlp_only_layers") or []),
        )
    window = _size(values, "sliding_window", 0)
    if window and values.get("use_sliding_window", "qwen" not in values["model_type"]):
        kinds = values.get("layer_types")
        every = _size(values, "sliding_window_pattern", 0)  # older Gemma 3: one whole layer in so many
        windowed = list(kinds).count("sliding_attention") if kinds else layers - layers // every if every else layers
        shape = replace(shape, sliding_window=window, windowed_layers=windowed)
    return shape


def _size(values: Mapping[str, Any], name: str, default: int | None = None, most: int = LARGEST) -> int:
    """A whole number from 1 (from 0 where there is a default) to `most`. ValueError for anything else."""
    value = values.get(name)
    value = default if value is None else value
    least = 1 if default is None else 0
    if value is None:
        raise ValueError(f"{name} is missing")
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name}={show(value)} is not a whole number from {least} to {most}")
    return value


def longest_sequence(text_config: Mapping[str, Any]) -> int | None:
    """max_position_embeddings where positions are not stretched; None where the configuration stretches them or names
    no limit, which is then the engine's to judge."""
    rope = text_config.get("rope_parameters") or text_config.get("rope_scaling") or {}
    stretched = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else "default"
    if stretched not in ("default", "llama3"):
        return None
    return text_config.get("max_position_embeddings")
