"""What a SGLang engine can be told, and that in SGLang's own words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from verl_core.config.errors import UserError
from verl_core.rollout.engine_options import EngineOptions


@dataclass(frozen=True)
class SglangOptions(EngineOptions):
    """`compile` is SGLang's torch.compile of small batches; `deterministic` may choose another attention kernel."""

    def check(self) -> None:
        super().check()
        if self.lora_config is not None:
            raise UserError("sglang serves adapters from folders only", "rollout.lora_native=false")
        if self.max_lora_rank is not None and self.lora is None:
            raise UserError("max_lora_rank is for an engine with an adapter", "name the adapter's folder in lora")


def server_words(options: SglangOptions, memory_share: float | None) -> dict[str, Any]:
    """SGLang's arguments (`sglang.srt.server_args.ServerArgs`).

    Args:
        memory_share: of the GPU's free memory, for weights and cache; None: on the CPU.
    """
    on_gpu = torch.cuda.is_available()
    words: dict[str, Any] = {
        "model_path": options.model,
        "device": "cuda" if on_gpu else "cpu",
        "skip_tokenizer_init": True,
        "dtype": options.dtype,
        "random_seed": options.seed,
        # SGLang ends a request one token before its context is full
        "context_length": options.max_model_len + 2,
        "max_running_requests": options.max_num_seqs,
        "chunked_prefill_size": options.max_num_batched_tokens,
        "tp_size": options.tensor_parallel_size,
        "load_format": options.load_format,
        "trust_remote_code": options.trust_remote_code,
        "sampling_backend": "pytorch",  # the one whose place `sampler.py` takes
        "sampling_defaults": "openai",  # none of the model folder's
        "incremental_streaming_output": True,
        "custom_weight_loader": ["verl_core.rollout.sglang.weights.load"],
        "enable_memory_saver": on_gpu and options.enable_sleep,
        "enable_weights_cpu_backup": on_gpu and options.enable_sleep and options.sleep_level == 1,
        "enable_deterministic_inference": on_gpu and options.deterministic,
        "enable_torch_compile": on_gpu and options.compile,
        "disable_cuda_graph": options.enforce_eager or not on_gpu,
        "log_level": "error",
    }
    if options.kv_cache_bytes is not None or not on_gpu:
        words["max_total_tokens"] = (options.kv_cache_bytes or _CPU_CACHE) // token_bytes(options)
    words["mem_fraction_static"] = _CPU_SHARE if memory_share is None else memory_share
    if not on_gpu:
        words["attention_backend"] = "torch_native"
    if options.lora is not None:
        words |= {
            "enable_lora": True,
            "lora_paths": {FIRST_ADAPTER: options.lora},
            "max_lora_rank": options.max_lora_rank or options.lora_rank(),
            "max_loras_per_batch": 2,  # a new one is loaded before the old one goes
        }
    return words


_CPU_CACHE = 2**30  # bytes
_CPU_SHARE = 0.9  # of free memory, a bound; SGLang's own choice is below zero on a machine of 24 GB
FIRST_ADAPTER = "adapter-0"


def token_bytes(options: SglangOptions) -> int:
    """Bytes of cache that a token takes on one rank. Raises UserError for attention whose cache is of another form."""
    config = options.model_json()
    text = config.get("text_config", config)
    if "kv_lora_rank" in text:
        raise UserError("kv_cache_bytes is for models that keep keys and values", "use gpu_memory_utilization")
    heads = text["num_attention_heads"]
    size = text.get("head_dim") or text["hidden_size"] // heads
    kept = max(1, (text.get("num_key_value_heads") or heads) // options.tensor_parallel_size)
    return 2 * text["num_hidden_layers"] * kept * size * getattr(torch, options.dtype).itemsize
