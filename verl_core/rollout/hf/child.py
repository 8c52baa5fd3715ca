"""HfEngine in a process of its own: a factory for `verl_core.rollout.child.ChildEngine`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from verl_core.config.errors import UserError
from verl_core.config.schema import ModelConfig
from verl_core.models.pretrained import eos_ids, load_causal_lm, load_generation_config, load_hf_config, load_tokenizer
from verl_core.platforms import current
from verl_core.rollout.hf.engine import HfEngine


def make(
    *,
    model: str,
    max_num_seqs: int,
    max_model_len: int,
    device: str = "cpu",
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
    threads: int | None = None,
    deterministic: bool = False,
    load: bool = True,
) -> HfEngine:
    """An engine of the folder `model`, with its weights as version 0 where `load` says so.

    Args:
        model: Hugging Face folder or hub name, with a tokenizer.
        max_num_seqs, max_model_len: as HfEngine's.
        device, dtype: torch's names.
        settings: further fields of ModelConfig.
        threads, deterministic: as trainer.num_threads and trainer.deterministic.
    """
    model_settings = ModelConfig(**{**(settings or {}), "path": model})
    platform = current("cuda" if device.startswith("cuda") else "cpu")
    platform.set_threads(threads)
    if deterministic:
        platform.set_deterministic()
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise UserError(f"rollout.dtype is {dtype!r}, which is not a type of numbers", "set bfloat16 or float32")
    tokenizer, config = load_tokenizer(model_settings), load_hf_config(model_settings, model)
    engine = HfEngine(
        config,
        tokenizer,
        device=device,
        dtype=kind,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        eos_ids=eos_ids(tokenizer, load_generation_config(model), config),
    )
    if load:
        network = load_causal_lm(model_settings, dtype=kind, device=device)
        engine.update_weights(((name, p.detach()) for name, p in network.named_parameters()), version=0)
    return engine
