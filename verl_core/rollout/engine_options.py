"""What an engine on a serving library (vLLM, SGLang) can be told, and what of it can be refused without the library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from verl_core.config.errors import UserError
from verl_core.planning.divisions import uneven_parts
from verl_core.planning.shapes import longest_sequence


@dataclass(frozen=True)
class EngineOptions:
    """Settings of one replica.

    Args:
        model: folder with a Hugging Face configuration, and weights where load_format is auto.
        eos_ids: every id that ends a sequence (`verl_core.models.tokenizer.eos_ids` collects them).
        max_model_len: longest prompt + response, tokens.
        dtype: of weights and cache.
        tensor_parallel_size: GPUs (on the CPU, processes) the replica spans.
        gpu_memory_utilization: share of a GPU's memory for weights and cache, in (0, 1).
        kv_cache_bytes: size of the cache instead of that share; the CPU's default is 1 GiB.
        max_num_seqs: sequences that run at the same time.
        max_num_batched_tokens: tokens that go through the model in one step.
        enforce_eager: no CUDA graphs. The CPU never has any.
        compile: the library's torch.compile mode, which takes longer to start.
        seed: of anything that has no seed of its own; requests bring theirs.
        tokenizer: folder of the tokenizer that finds stop strings; None: the model's.
        lora: folder of a PEFT adapter that every request uses; None: no adapter.
        lora_config: r, lora_alpha and target_modules, as in peft's adapter_config.json, of an adapter that every
            request uses: its tensors, not the model's, come with each `update_weights`.
        max_lora_rank: the largest rank that adapters loaded later may have; None: the rank of `lora`.
        enable_sleep: the GPU's memory can be given back and taken again.
        sleep_level: 1 keeps the weights in host memory while asleep; 2 drops them, the next update brings new ones.
        load_format: auto reads the folder's weights; dummy has none until `update_weights`.
        deterministic: kernels whose results do not depend on the batch. Slower.
    """

    model: str
    eos_ids: tuple[int, ...]
    max_model_len: int
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.5
    kv_cache_bytes: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    enforce_eager: bool = False
    compile: bool = False
    seed: int = 0
    tokenizer: str | None = None
    lora: str | None = None
    lora_config: dict[str, Any] | None = None
    max_lora_rank: int | None = None
    enable_sleep: bool = False
    sleep_level: Literal[1, 2] = 1
    load_format: Literal["auto", "dummy"] = "auto"
    deterministic: bool = False
    trust_remote_code: bool = False

    def model_json(self) -> dict[str, Any]:
        """The model's config.json. Raises UserError where there is none."""
        path = Path(self.model) / "config.json"
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}", "model.path is a folder with a config.json") from error

    @property
    def has_adapter(self) -> bool:
        return self.lora is not None or self.lora_config is not None

    def lora_rank(self) -> int:
        """Rank of the adapter. Raises UserError where the folder `lora` holds none."""
        if self.lora_config is not None:
            return int(self.lora_config["r"])
        assert self.lora is not None
        path = Path(self.lora) / "adapter_config.json"
        try:
            return int(json.loads(path.read_text())["r"])
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{self.lora} holds no adapter: {error}", "name a folder that PEFT has saved") from error

    def check(self) -> None:
        """Compares the options with the model's configuration.

        Raises:
            UserError: what the library would refuse later, or what cannot be served here.
        """
        config = self.model_json()
        text = config.get("text_config", config)
        if config.get("quantization_config"):
            raise UserError(
                f"{self.model} holds quantised weights, and the trainer's cannot be written over them",
                "name the folder of the unquantised model in model.path",
            )
        if fault := uncut(text, self.tensor_parallel_size):
            fitting = [str(n) for n in range(1, text["num_attention_heads"] + 1) if not uncut(text, n)]
            raise UserError(fault, f"choose one of {', '.join(fitting)}")
        longest = longest_sequence(text)
        if longest is not None and self.max_model_len > longest:
            raise UserError(
                f"rollout.max_model_len={self.max_model_len} is longer than the {longest} tokens of {self.model}",
                "lower rollout.max_model_len, or data.max_prompt_length and data.max_response_length",
            )
        if self.has_adapter:
            self.lora_rank()
            if self.lora is not None and self.lora_config is not None:
                raise UserError("lora and lora_config name two adapters for one engine", "give one of them")
            if self.load_format == "dummy" or (self.enable_sleep and self.sleep_level == 2):
                raise UserError(
                    "an engine with an adapter reads its base weights from the model's folder, and keeps them",
                    "load_format=auto and sleep_level=1",
                )


def uncut(text_config: dict[str, Any], ranks: int) -> str | None:
    """Why a model cannot be cut for so many ranks; None where it can."""
    heads = text_config.get("num_attention_heads")
    if not heads:
        return None
    key_heads, vocabulary = text_config.get("num_key_value_heads") or heads, text_config["vocab_size"]
    return next(uneven_parts("rollout.tensor_model_parallel_size", ranks, heads, key_heads, vocabulary), None)
