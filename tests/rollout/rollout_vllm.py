"""The real vLLM in a process of its own, on the CPU, from the environment that the lock describes for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from rollout_children import child
from rollout_models import build
from transformers import PreTrainedModel, Qwen2Config

from verl_core.models.builtin import build_tokenizer
from verl_core.rollout.child import ChildEngine
from verl_core.rollout.protocol import Completion, TokenRequest

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY, EOS = 384, (2, 7)  # two ids end a sequence
_SIZE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
_REST = {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def interpreter() -> str:
    """The python of the environment with vLLM's CPU build; made where it is not there yet."""
    wanted = ["--engine", "vllm", "--backend", "fsdp"]
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}", "NO_COLOR": "1"}
    variables.pop("RLX_PYTHON", None)
    command = [sys.executable, "-m", "rlx", "env", "sync", *wanted]
    made = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return str(Path(made.stdout.strip().splitlines()[-1]) / "bin" / "python")


def config(**changes: Any) -> Qwen2Config:
    sizes = {"vocab_size": VOCABULARY, "head_dim": 32, "max_position_embeddings": 1024, **_SIZE, **_REST}
    return Qwen2Config(**(sizes | {"architectures": ["Qwen2ForCausalLM"]} | changes))


def write(folder: Path, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A tiny model with a tokenizer in a folder."""
    model = build(config(**changes), seed)
    model.save_pretrained(folder)
    build_tokenizer(["7+5=12", "12-3=9", "Tom has three pens"]).save_pretrained(folder)
    return model


def vllm_child(folder: Path, python: str, **options: Any) -> ChildEngine:
    words = {
        "model": str(folder),
        "eos_ids": EOS,
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 32,
        "kv_cache_bytes": 2**26,
    }
    return child("verl_core.rollout.vllm:make", words | options, python=python)


@torch.no_grad()
def defined_logps(model: PreTrainedModel, asked: TokenRequest, completion: Completion) -> torch.Tensor:
    """Log-probs of the completion's ids as docs/rollout.md defines them, from transformers' forward: after temperature,
    then top-k, then top-p, renormalised; greedy at temperature 1. Shape [tokens]."""
    sampling = asked.sampling
    logits = model(torch.tensor([[*asked.ids, *completion.ids]])).logits[0, len(asked.ids) - 1 : -1].double()
    probs = (logits / (sampling.temperature or 1.0)).softmax(-1)
    if sampling.temperature and (sampling.top_k > 0 or sampling.top_p < 1):
        ranked, order = probs.sort(dim=-1, descending=True, stable=True)
        if sampling.top_k > 0:
            ranked[:, sampling.top_k :] = 0
            ranked /= ranked.sum(-1, keepdim=True)
        ranked[ranked.cumsum(-1) - ranked >= sampling.top_p] = 0
        probs = torch.zeros_like(probs).scatter(-1, order, ranked / ranked.sum(-1, keepdim=True))
    return probs.log().gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
