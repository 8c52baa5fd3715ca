"""Rollout through rlx with log-probs of the sampled tokens, against bare `vllm.LLM.generate` without any, in one run.

    python tests/benchmarks/gpu_rollout.py 0.5B 1.5B
    python tests/benchmarks/gpu_rollout.py 0.5B prompts=256 samples=8 tokens=512 compile=true

Each shape (random weights) prints one JSON line: tokens/s of both, the median of `rounds` rounds after one of warm-up,
and their ratio. Both have the same vLLM arguments, samples of a prompt side by side, temperature 1 and no end ids, so
both make prompts x samples x tokens tokens. rlx's side is what a run sees: the engine in a process of its own, a seed a
request, ids, log-probs and versions back in this process. Each side has the GPU to itself, one after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

SHAPES = {  # Qwen2.5's: hidden, feed-forward, layers, heads, key-value heads
    "0.5B": (896, 4864, 24, 14, 2),
    "1.5B": (1536, 8960, 28, 12, 2),
}
VOCABULARY, PROMPT = 151936, 64
DEFAULTS: dict[str, Any] = {"prompts": 256, "samples": 8, "tokens": 512, "rounds": 3, "seqs": 256, "compile": False}


def write_model(shape: str, folder: str) -> None:
    """In a process of its own, so that its memory is gone before an engine starts."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    D, F, L, H, K = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=D, intermediate_size=F, num_hidden_layers=L, num_attention_heads=H,
        num_key_value_heads=K, tie_word_embeddings=True, max_position_embeddings=32768,
        architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip
    with torch.device("cuda"):
        Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)


def prompts(count: int) -> list[list[int]]:
    import torch

    return torch.randint(3, VOCABULARY, (count, PROMPT), generator=torch.Generator().manual_seed(0)).tolist()


def engine_options(folder: str, rule: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": folder, "eos_ids": [], "max_model_len": PROMPT + rule["tokens"], "max_num_seqs": rule["seqs"],
        "gpu_memory_utilization": 0.6, "compile": rule["compile"],
    }  # fmt: skip


def rlx_side(folder: str, rule: dict[str, Any]) -> list[float]:
    from verl_core.rollout.child import ChildEngine
    from verl_core.rollout.protocol import Sampling, TokenRequest

    sampling = Sampling(max_tokens=rule["tokens"], ignore_eos=True)
    every = [(p, s, tuple(ids)) for p, ids in enumerate(prompts(rule["prompts"])) for s in range(rule["samples"])]
    seconds = []
    with ChildEngine("verl_core.rollout.vllm:make", engine_options(folder, rule)) as engine:
        for turn in range(rule["rounds"] + 1):
            asked = [
                TokenRequest(f"{turn}/{p}/{s}", f"{p}", ids, sampling, seed=(turn * 4096 + p) * 64 + s)
                for p, s, ids in every
            ]
            start = time.perf_counter()
            answers = engine.generate(asked)
            seconds.append(time.perf_counter() - start)
            assert all(len(got.logps) == rule["tokens"] for got in answers)
    return seconds[1:]


def bare_side(folder: str, rule: dict[str, Any]) -> list[float]:
    from vllm import LLM, SamplingParams

    from verl_core.rollout.vllm.core import engine_words
    from verl_core.rollout.vllm.options import VllmOptions

    words = engine_words(VllmOptions(**engine_options(folder, rule) | {"eos_ids": ()}))
    for ours in ("worker_extension_cls", "logprobs_mode"):
        del words[ours]
    llm = LLM(**words)
    params = SamplingParams(max_tokens=rule["tokens"], ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": ids} for ids in prompts(rule["prompts"]) for _ in range(rule["samples"])]
    seconds = []
    for _ in range(rule["rounds"] + 1):
        start = time.perf_counter()
        answers = llm.generate(asked, params, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
        assert all(len(got.outputs[0].token_ids) == rule["tokens"] for got in answers)
    return seconds[1:]


SIDES = {"rlx": rlx_side, "bare": bare_side}


def side(name: str, folder: str, rule: dict[str, Any]) -> list[float]:
    """Seconds a round, measured in a process of its own."""
    command = [sys.executable, __file__, "--side", name, folder, json.dumps(rule)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ})
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of both sides; as jobs do
    words = sys.argv[1:]
    if words and words[0] == "--side":
        print(json.dumps(SIDES[words[1]](words[2], json.loads(words[3]))))
        return
    if words and words[0] == "--write":
        write_model(words[1], words[2])
        return
    rule = DEFAULTS | {key: json.loads(value) for key, value in (word.split("=") for word in words if "=" in word)}
    for shape in [word for word in words if "=" not in word] or list(SHAPES):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, __file__, "--write", shape, str(Path(folder))], check=True)
            made, rates = rule["prompts"] * rule["samples"] * rule["tokens"], {}
            for name in SIDES:
                rates[name] = made / median(side(name, folder, rule))
                print(f"{name}: {rates[name]:.0f} tokens/s", file=sys.stderr, flush=True)
        figures = {f"{name}_tokens_per_s": round(rate) for name, rate in rates.items()}
        print(json.dumps({"shape": shape, **rule, **figures, "ratio": round(rates["rlx"] / rates["bare"], 3)}))


if __name__ == "__main__":
    main()
