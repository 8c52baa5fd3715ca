"""Tiny real models of the architectures packed attention must serve, written as Hugging Face folders."""

from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

COMMON = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
ARCHITECTURES = {
    "qwen2": {},
    "qwen2-sliding": dict(use_sliding_window=True, max_window_layers=0, **WINDOW),
    "qwen3": {"tie_word_embeddings": True},
    "llama": {},
    "mistral": {"sliding_window": 4},
    "gemma2": dict(attn_logit_softcapping=0.5, final_logit_softcapping=0.7, query_pre_attn_scalar=8, **WINDOW),
    "gemma3_text": dict(query_pre_attn_scalar=8, **WINDOW),
    "granite": {"logits_scaling": 3.0, "attention_multiplier": 0.2},
    "cohere": {"logit_scale": 0.5},
    "qwen3_moe": {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True},
}


def write_model(folder: Path, name: str = "qwen2", seed: int = 0, **override) -> Path:
    """A model with weights large enough that attention is far from uniform."""
    config = CONFIG_MAPPING[name.split("-")[0]](**{**COMMON, **ARCHITECTURES[name], **override})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:  # matrices, and the experts' stacked ones
                parameter.normal_(0, 0.3)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder
