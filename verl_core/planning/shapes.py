"""A decoder's shape, and how many parameters that is. Reads a config.json's values; holds no weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from verl_core.config.errors import UserError

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
        """Parameters of a low-rank adapter, (in + out) x rank a matrix (arXiv 2106.09685, section 4.1)."""
        d, q, kv = self.hidden, self.q_width, self.kv_width
        attention = {"q_proj": d + q, "k_proj": d + kv, "v_proj": d + kv, "o_proj": q + d}

        def wanted(widths: Mapping[str, int]) -> int:
            return sum(size for name, size in widths.items() if targets == "all-linear" or name in targets)

        def feed_forward(width: int) -> int:
            return wanted({"gate_proj": d + width, "up_proj": d + width, "down_proj": width + d})

        total = 0
        for i in range(self.layers):
            routed = self.experts * feed_forward(self.expert_ffn) if self.has_experts(i) else feed_forward(self.ffn)
            shared = feed_forward(self.shared_expert_ffn) if self.has_experts(i) and self.shared_expert_ffn else 0
            total += wanted(attention) + routed + shared
        return rank * total

    def remembered(self, length: int) -> float:
        """Tokens whose keys and values a sequence of `length` keeps, as a mean over layers: windowed ones forget."""
        if not self.sliding_window:
            return length
        windowed = self.windowed_layers * min(length, self.sliding_window)
        return (windowed + (self.layers - self.windowed_layers) * length) / self.layers


def shape_from(values: Mapping[str, Any], place: str) -> ModelShape:
    """The shape that a config.json's values describe.

    Raises UserError naming `place` for an architecture that is not known here or values that are missing.
    """
    values = values.get("text_config", values)
    kind = values.get("model_type")
    if kind not in FAMILIES:
        raise UserError(
            f"{place}: model_type {kind!r} is no architecture that plans know",
            f"known are {', '.join(FAMILIES)}",
        )
    try:
        return _shape(values, FAMILIES[kind])
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(
            f"{place}: no whole model configuration ({error!r})", "give the config.json of a model"
        ) from error


def _shape(values: Mapping[str, Any], family: Mapping[str, bool]) -> ModelShape:
    heads, hidden, layers = values["num_attention_heads"], values["hidden_size"], values["num_hidden_layers"]
    experts = values.get("num_experts", values.get("num_local_experts")) or 0
    bias = bool(values.get("attention_bias", False))
    shape = ModelShape(
        layers=int(layers),
        hidden=int(hidden),
        heads=int(heads),
        kv_heads=int(values.get("num_key_value_heads") or heads),
        head_dim=int(values.get("head_dim") or hidden // heads),
        ffn=int(values["intermediate_size"]),
        vocab=int(values["vocab_size"]),
        tied=bool(values.get("tie_word_embeddings", "sandwich_norms" in family)),
        qkv_bias=bias or family.get("qkv_bias", False),
        out_bias=bias,
        qk_norm=family.get("qk_norm", False),
        sandwich_norms=family.get("sandwich_norms", False),
        max_positions=int(values.get("max_position_embeddings") or 0),
    )
    if experts:
        shape = replace(
            shape,
            experts=int(experts),
            experts_per_token=int(values["num_experts_per_tok"]),
            expert_ffn=int(values.get("moe_intermediate_size") or values["intermediate_size"]),
            shared_expert_ffn=int(values.get("shared_expert_intermediate_size") or 0),
            first_dense_layers=len(values.get("mlp_only_layers") or []),
        )
    window = values.get("sliding_window")
    if window and values.get("use_sliding_window", "qwen" not in values["model_type"]):
        kinds = values.get("layer_types")
        every = values.get("sliding_window_pattern")  # older Gemma 3: one whole layer in so many
        windowed = kinds.count("sliding_attention") if kinds else layers - layers // every if every else layers
        shape = replace(shape, sliding_window=int(window), windowed_layers=int(windowed))
    return shape
