"""Tiny real models, and what transformers itself says about a completion."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from verl_core.rollout.hf import HfEngine
from verl_core.rollout.protocol import Completion, Sampling, TokenRequest

VOCABULARY = 97
EOS = 2

_SIZE = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256}
_ENDS = {"bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": 0}
_SHAPE = {**_SIZE, **_HEADS, **_ENDS}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}

FAMILY: dict[str, Any] = {
    "llama-llama3-rope": LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3),
    "llama-biases-linear-rope": LlamaConfig(**_SHAPE, attention_bias=True, mlp_bias=True, rope_parameters=_LINEAR),
    "qwen2-tied": Qwen2Config(**_SHAPE, tie_word_embeddings=True),
    "qwen2-one-sliding-layer": Qwen2Config(**_SHAPE, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3": Qwen3Config(**_SHAPE),
    "mistral-sliding": MistralConfig(**_SHAPE, sliding_window=7),
}
GENERIC: dict[str, Any] = {
    "gemma2": Gemma2Config(**_SHAPE, sliding_window=7, query_pre_attn_scalar=16, attn_logit_softcapping=5.0),
    "gpt-neox": GPTNeoXConfig(**_SIZE, **_ENDS, num_attention_heads=4, max_position_embeddings=256),
}


def build(config: Any, seed: int = 0) -> PreTrainedModel:
    """The model with weights (biases and norms too) large enough that its distributions are far from uniform."""
    attention = "eager" if getattr(config, "attn_logit_softcapping", None) else None
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "norm" in name and name.endswith("weight") and "gemma" not in config.model_type else 0.0
            width = 0.15 if parameter.dim() == 2 else 0.3
            parameter.copy_(centre + width * torch.randn(parameter.shape, generator=draw))
    return model


def engine_for(model: PreTrainedModel, tokenizer: Any = None, **options: Any) -> HfEngine:
    """An engine that shares the model's weights, as version 1."""
    settings = {"device": "cpu", "dtype": torch.float32, "max_num_seqs": 64, "max_model_len": 64, "eos_ids": [EOS]}
    engine = HfEngine(model.config, tokenizer, **(settings | options))
    engine.update_weights(model.named_parameters(), version=1)
    return engine


def prompt(seed: int, length: int = 6) -> tuple[int, ...]:
    return tuple(torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def request(name: str, ids: tuple[int, ...], seed: int = 0, **sampling: Any) -> TokenRequest:
    return TokenRequest(name, "session", ids, Sampling(**({"max_tokens": 12} | sampling)), seed)


def mixed_requests(count: int) -> list[TokenRequest]:
    """Requests of unlike prompts (two share one), lengths, temperatures and seeds; every other is greedy."""
    return [
        request(
            str(i), prompt(i // 2, 4 + i // 2 % 9), seed=i, max_tokens=5 + i % 17, temperature=0.0 if i % 2 else 0.7
        )
        for i in range(count)
    ]


@torch.no_grad()
def reference_logps(model: PreTrainedModel, asked: TokenRequest, completion: Completion) -> torch.Tensor:
    """log_softmax at the request's temperature (1 where it is greedy) of the completion's ids, by the model's own
    forward over the whole sequence. Shape [tokens]."""
    ids = torch.tensor([[*asked.ids, *completion.ids]])
    logits = model(ids).logits[0, len(asked.ids) - 1 : -1].float() / (asked.sampling.temperature or 1.0)
    return logits.log_softmax(-1).gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
