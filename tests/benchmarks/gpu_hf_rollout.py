"""Tokens per second of the hf engine against `model.generate` on one GPU, in one run.

    python tests/benchmarks/gpu_hf_rollout.py
    python tests/benchmarks/gpu_hf_rollout.py 135M 0.5B prompts=64,256 tokens=256 seqs=256 rounds=3

Random weights in bf16, sdpa, temperature 1. Each prompt wants its own number of tokens, evenly spread up to `tokens`.
`generate` has all prompts in one batch and stops when the last row has what it wants; rlx runs up to `seqs` rows. Both
count the tokens that were wanted. rlx gives log-probs, `generate` does not. The sides alternate; each figure is
the median of `rounds` rounds after one of warm-up, whose time with the capture of the graphs is told apart. One JSON
line a shape and number of prompts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, StoppingCriteria, StoppingCriteriaList

from verl_core.rollout.hf import HfEngine
from verl_core.rollout.protocol import Sampling, TokenRequest

PROMPT = 64  # tokens, at most; at least half
SHAPES: dict[str, Any] = {
    "135M": LlamaConfig(  # SmolLM2-135M's
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=8192,
    ),
    "0.5B": Qwen2Config(  # Qwen2.5-0.5B's
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=32768,
    ),
}  # fmt: skip
DEFAULTS = {"prompts": [64, 256], "tokens": 256, "seqs": 256, "rounds": 3}


class Enough(StoppingCriteria):
    """Ends each row at its own number of tokens."""

    def __init__(self, prompt: int, wanted_B: torch.Tensor):
        self.prompt, self.wanted_B = prompt, wanted_B

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.wanted_B <= input_ids.shape[1] - self.prompt


def requests_of(count: int, tokens: int, vocabulary: int) -> list[TokenRequest]:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(PROMPT // 2, PROMPT + 1, (count,), generator=draw).tolist()
    wanted = ((torch.randperm(count, generator=draw) + 1) * tokens // count).clamp(min=1).tolist()
    return [
        TokenRequest(
            str(i), str(i), tuple(torch.randint(3, vocabulary, (length,), generator=draw).tolist()),
            Sampling(most, ignore_eos=True), seed=i,
        )
        for i, (length, most) in enumerate(zip(lengths, wanted, strict=True))
    ]  # fmt: skip


def generate_side(model: Any, requests: list[TokenRequest]) -> Callable[[], None]:
    longest = max(len(r.ids) for r in requests)
    ids_BT = torch.tensor([[0] * (longest - len(r.ids)) + list(r.ids) for r in requests], device="cuda")
    seen_BT = torch.tensor([[0] * (longest - len(r.ids)) + [1] * len(r.ids) for r in requests], device="cuda")
    wanted_B = torch.tensor([r.sampling.max_tokens for r in requests], device="cuda")
    most = int(wanted_B.max())

    def run() -> None:
        out = model.generate(
            ids_BT, attention_mask=seen_BT, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=most,
            pad_token_id=0, eos_token_id=None, stopping_criteria=StoppingCriteriaList([Enough(longest, wanted_B)]),
        )  # fmt: skip
        assert out.shape[1] == longest + most

    return run


def case(model: Any, shape: str, count: int, rule: dict[str, Any]) -> dict[str, Any]:
    requests = requests_of(count, rule["tokens"], model.config.vocab_size)
    made = sum(r.sampling.max_tokens for r in requests)
    engine = HfEngine(
        model.config, None, device="cuda", dtype=torch.bfloat16, max_num_seqs=rule["seqs"],
        max_model_len=PROMPT + rule["tokens"], eos_ids=[],
    )  # fmt: skip
    engine.update_weights(model.named_parameters(), version=1)

    def ours() -> None:
        assert sum(len(c.logps) for c in engine.generate(requests)) == made

    sides: dict[str, Callable[[], None]] = {"rlx": ours, "generate": generate_side(model, requests)}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rule["rounds"] + 1):
        for name, run in sides.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            rates[name].append(made / (time.perf_counter() - start))
    engine.sleep()
    rlx, generate = (median(rates[name][1:]) for name in ("rlx", "generate"))
    return {
        "shape": shape, "prompts": count, "tokens": made, "rlx_tokens_per_s": round(rlx),
        "rlx_first_tokens_per_s": round(rates["rlx"][0]), "generate_tokens_per_s": round(generate),
        "ratio": round(rlx / generate, 2),
    }  # fmt: skip


def main() -> None:
    words = sys.argv[1:]
    rule: dict[str, Any] = dict(DEFAULTS)
    for key, value in (word.split("=") for word in words if "=" in word):
        rule[key] = [int(n) for n in value.split(",")] if key == "prompts" else int(value)
    for shape in [word for word in words if "=" not in word] or ["135M"]:
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(
                SHAPES[shape], dtype=torch.bfloat16, attn_implementation="sdpa"
            ).eval()
        for count in rule["prompts"]:
            print(json.dumps(case(model, shape, count, rule) | {"seqs": rule["seqs"]}), flush=True)


if __name__ == "__main__":
    main()
