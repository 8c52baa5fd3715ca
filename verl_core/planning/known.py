"""Shapes of well-known models, as the values of their config.json, by the name they have on the Hugging Face hub."""

import re
from typing import Any

# family, then (layers, hidden, heads, kv heads, head size, feed-forward width, vocabulary, tied, longest sequence)
_DENSE: dict[str, tuple[str, tuple[int, int, int, int, int, int, int, bool, int]]] = {
    "qwen2-0.5b": ("qwen2", (24, 896, 14, 2, 64, 4864, 151936, True, 131072)),
    "qwen2-1.5b": ("qwen2", (28, 1536, 12, 2, 128, 8960, 151936, True, 131072)),
    "qwen2-7b": ("qwen2", (28, 3584, 28, 4, 128, 18944, 152064, False, 131072)),
    "qwen2-72b": ("qwen2", (80, 8192, 64, 8, 128, 29568, 152064, False, 131072)),
    "qwen2.5-0.5b": ("qwen2", (24, 896, 14, 2, 64, 4864, 151936, True, 32768)),
    "qwen2.5-1.5b": ("qwen2", (28, 1536, 12, 2, 128, 8960, 151936, True, 131072)),
    "qwen2.5-3b": ("qwen2", (36, 2048, 16, 2, 128, 11008, 151936, True, 32768)),
    "qwen2.5-7b": ("qwen2", (28, 3584, 28, 4, 128, 18944, 152064, False, 131072)),
    "qwen2.5-14b": ("qwen2", (48, 5120, 40, 8, 128, 13824, 152064, False, 131072)),
    "qwen2.5-32b": ("qwen2", (64, 5120, 40, 8, 128, 27648, 152064, False, 131072)),
    "qwen2.5-72b": ("qwen2", (80, 8192, 64, 8, 128, 29568, 152064, False, 131072)),
    "deepseek-r1-distill-qwen-1.5b": ("qwen2", (28, 1536, 12, 2, 128, 8960, 151936, False, 131072)),
    "deepseek-r1-distill-qwen-7b": ("qwen2", (28, 3584, 28, 4, 128, 18944, 152064, False, 131072)),
    "deepseek-r1-distill-qwen-32b": ("qwen2", (64, 5120, 40, 8, 128, 27648, 152064, False, 131072)),
    "qwen3-0.6b": ("qwen3", (28, 1024, 16, 8, 128, 3072, 151936, True, 40960)),
    "qwen3-1.7b": ("qwen3", (28, 2048, 16, 8, 128, 6144, 151936, True, 40960)),
    "qwen3-4b": ("qwen3", (36, 2560, 32, 8, 128, 9728, 151936, True, 40960)),
    "qwen3-8b": ("qwen3", (36, 4096, 32, 8, 128, 12288, 151936, False, 40960)),
    "qwen3-14b": ("qwen3", (40, 5120, 40, 8, 128, 17408, 151936, False, 40960)),
    "qwen3-32b": ("qwen3", (64, 5120, 64, 8, 128, 25600, 151936, False, 40960)),
    "llama-3.1-8b": ("llama", (32, 4096, 32, 8, 128, 14336, 128256, False, 131072)),
    "llama-3.1-70b": ("llama", (80, 8192, 64, 8, 128, 28672, 128256, False, 131072)),
    "llama-3.3-70b": ("llama", (80, 8192, 64, 8, 128, 28672, 128256, False, 131072)),
    "llama-3.2-1b": ("llama", (16, 2048, 32, 8, 64, 8192, 128256, True, 131072)),
    "llama-3.2-3b": ("llama", (28, 3072, 24, 8, 128, 8192, 128256, True, 131072)),
    "smollm2-135m": ("llama", (30, 576, 9, 3, 64, 1536, 49152, True, 8192)),
    "smollm2-360m": ("llama", (32, 960, 15, 5, 64, 2560, 49152, True, 8192)),
    "smollm2-1.7b": ("llama", (24, 2048, 32, 32, 64, 8192, 49152, True, 8192)),
    "gemma-2-2b": ("gemma2", (26, 2304, 8, 4, 256, 9216, 256000, True, 8192)),
    "gemma-2-9b": ("gemma2", (42, 3584, 16, 8, 256, 14336, 256000, True, 8192)),
    "gemma-2-27b": ("gemma2", (46, 4608, 32, 16, 128, 36864, 256000, True, 8192)),
    "gemma-3-1b": ("gemma3_text", (26, 1152, 4, 1, 256, 6912, 262144, True, 32768)),
}
_EXTRA: dict[str, dict[str, Any]] = {
    "gemma-2": {"sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma-3": {"sliding_window": 512, "sliding_window_pattern": 6},
}
_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8}
_MOE: dict[str, tuple[tuple[int, int, int, int, int, int, int, bool, int], int]] = {  # and the width of one expert
    "qwen3-30b-a3b": ((48, 2048, 32, 4, 128, 6144, 151936, False, 40960), 768),
    "qwen3-235b-a22b": ((94, 4096, 64, 4, 128, 12288, 151936, False, 40960), 1536),
}
_KEYS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "tie_word_embeddings",
    "max_position_embeddings",
)
# The model that rlx makes itself: verl_core/models/builtin.py, with the 341 tokens its corpus yields.
_BUILTIN = ("qwen2", (2, 96, 3, 3, 32, 256, 341, True, 512))
_VARIANT = re.compile(r"-(instruct|base|chat|it|pt|thinking|1m|\d{4})(?=-|$)")
_SPECIALTY = re.compile(r"-(math|coder)(?=-)")


def names() -> list[str]:
    """The models known here, without the owners and variants of their hub names."""
    return [*_DENSE, *_MOE]


def known_config(path: str) -> dict[str, Any] | None:
    """The config.json values of a model by its hub name (any owner, base or instruct), or None for one unknown here."""
    if path.startswith("builtin:"):
        return _values(*_BUILTIN)
    name = path.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    plain = _SPECIALTY.sub("", _VARIANT.sub("", name))
    if plain in _MOE:
        sizes, expert = _MOE[plain]
        values = _values("qwen3_moe", sizes) | _EXPERTS | {"moe_intermediate_size": expert}
    elif plain in _DENSE:
        values = _values(*_DENSE[plain])
    else:
        return None
    for family, extra in _EXTRA.items():
        if plain.startswith(family):
            values |= extra
    longest = values["max_position_embeddings"]
    if plain.startswith("qwen2") and "-instruct" in name:
        longest = 32768
    if "-math-" in name:
        longest = 4096
    if "-2507" in name:
        longest = 262144
    if name.endswith("-1m"):
        longest = 1010000
    values["max_position_embeddings"] = longest
    return values


def _values(family: str, sizes: tuple[Any, ...]) -> dict[str, Any]:
    return {"model_type": family, **dict(zip(_KEYS, sizes, strict=True))}
