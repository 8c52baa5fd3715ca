"""Tokens per second of the hf engine against `model.generate` with its default cache, same run, one thread.

The smoke model's shape: Qwen2, hidden 96, 2 layers, 3 heads of 32, tied, float32; 16 prompts of about 26 tokens,
8 samples of each, 24 new tokens, temperature 1. Prints one JSON line; each side is the median of `--repeats` runs that
alternate, so that other load on the machine meets both.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_hf_rollout.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from verl_core.rollout.hf import HfEngine
from verl_core.rollout.protocol import Sampling, TokenRequest

PAD, EOS = 0, 2


def smoke_model() -> torch.nn.Module:
    """An untrained model of the builtin smoke model's shape."""
    torch.manual_seed(0)
    shape = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 373}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 32, "max_position_embeddings": 512}
    return AutoModelForCausalLM.from_config(Qwen2Config(**shape, **heads, tie_word_embeddings=True)).eval()


def prompts(count: int) -> list[tuple[int, ...]]:
    """Random prompts of 24 to 28 tokens."""
    draw = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(3, 373, (24 + i % 5,), generator=draw).tolist()) for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = smoke_model()

    sampling = Sampling(max_tokens=args.new_tokens, ignore_eos=True)
    group = prompts(args.prompts)
    requests = [
        TokenRequest(f"{p}/{s}", str(p), ids, sampling, seed=1000 * p + s)
        for p, ids in enumerate(group)
        for s in range(args.samples)
    ]
    longest = max(len(ids) for ids in group)
    engine = HfEngine(
        model.config,
        tokenizer=None,
        device="cpu",
        dtype=torch.float32,
        max_num_seqs=len(requests),
        max_model_len=longest + args.new_tokens,
        eos_ids=[EOS],
    )
    engine.update_weights(model.named_parameters(), version=1)

    rows = [r.ids for r in requests]
    ids_ST = torch.tensor([[PAD] * (longest - len(ids)) + list(ids) for ids in rows])
    attended_ST = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in rows])

    def ours() -> int:
        return sum(len(c.ids) for c in engine.generate(requests))

    def theirs() -> int:
        out = model.generate(
            ids_ST,
            attention_mask=attended_ST,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=args.new_tokens,
            pad_token_id=PAD,
        )
        return out[:, longest:].numel()

    sides: dict[str, list[float]] = {"rlx": [], "generate": []}
    for repeat in range(args.repeats + 1):  # the first warms up
        for name, run in (("rlx", ours), ("generate", theirs)):
            start = time.perf_counter()
            tokens = run()
            if repeat:
                sides[name].append(tokens / (time.perf_counter() - start))
    median = {name: statistics.median(rates) for name, rates in sides.items()}
    report = {
        "benchmark": "hf_rollout",
        "sequences": len(requests),
        "new_tokens": args.new_tokens,
        "threads": torch.get_num_threads(),
        "rlx_tokens_per_s": round(median["rlx"]),
        "generate_tokens_per_s": round(median["generate"]),
        "ratio": round(median["rlx"] / median["generate"], 2),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
