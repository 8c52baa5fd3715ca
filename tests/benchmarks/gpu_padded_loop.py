"""Packed updates of the FSDP2 engine against the loop a tutorial writes: transformers, padded batches, SDPA.

    python tests/benchmarks/gpu_padded_loop.py 0.5B

Both train the same 256 sequences of GSM8K-like lengths (prompts of 60 to 220 tokens, answers lognormal around 150, at
most 512) in bf16 with float32 master weights and fused AdamW; the loop takes 16 sequences at a time as they come, with
autocast; activation checkpointing is off on both sides. One JSON line: tokens a second (padding not counted), their
ratio and peak memory; medians of five steps after two.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from gpu_update import VOCABULARY, Likelihood, make_engine
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from verl_core.algorithms.loss import Totals
from verl_core.batch import Batch

SEQUENCES, AT_ONCE, BUDGET = 256, 16, 16384


def lengths() -> list[int]:
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(60, 220, (SEQUENCES,), generator=generator)
    answers = (torch.randn(SEQUENCES, generator=generator) * 0.5 + 5.0).exp().clamp(20, 512).int()
    return (prompts + answers).tolist()


def timed(step) -> tuple[float, float]:
    seconds = []
    for i in range(7):
        if i == 2:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds[2:]), torch.cuda.max_memory_allocated() / 1e9


def packed(shape: str, length: list[int], ids: list[Tensor]) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(shape, Path(folder), BUDGET, {})
    batch = Batch(torch.tensor(length), torch.arange(len(length)), {})
    batch = batch.add(ids_N=torch.cat(ids), mask_N=torch.ones(batch.N, dtype=torch.bool))
    totals = Totals.of(batch)
    return timed(lambda: engine.step(batch, Likelihood(), totals))


def padded(shape: str, ids: list[Tensor]) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        make_engine(shape, Path(folder), BUDGET, {})
        config = AutoConfig.from_pretrained(folder)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    tokens = sum(len(x) for x in ids)

    def step() -> None:
        for at in range(0, len(ids), AT_ONCE):
            rows = ids[at : at + AT_ONCE]
            longest = max(map(len, rows))
            row = torch.stack([F.pad(x, (0, longest - len(x))) for x in rows]).cuda()
            mask = torch.stack([F.pad(torch.ones_like(x), (0, longest - len(x))) for x in rows]).cuda()
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(input_ids=row, attention_mask=mask, use_cache=False).logits[:, :-1].float()
            logp = -F.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten(), reduction="none")
            (-(logp * mask[:, 1:].flatten()).sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timed(step)


def main(shape: str) -> None:
    length = lengths()
    ids = [torch.randint(0, VOCABULARY, (n,)) for n in length]
    tokens = sum(length)
    loop_s, loop_gb = padded(shape, ids)
    torch.cuda.empty_cache()
    ours_s, ours_gb = packed(shape, length, ids)
    print(json.dumps({
        "shape": shape, "tokens": tokens, "padding_share": round(1 - tokens / _padded_tokens(length), 3),
        "rlx_tokens_per_s": round(tokens / ours_s), "loop_tokens_per_s": round(tokens / loop_s),
        "ratio": round(loop_s / ours_s, 2), "rlx_peak_gb": round(ours_gb, 1), "loop_peak_gb": round(loop_gb, 1),
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
    }), flush=True)  # fmt: skip


def _padded_tokens(length: list[int]) -> int:
    return sum(AT_ONCE * max(length[at : at + AT_ONCE]) for at in range(0, len(length), AT_ONCE))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "0.5B")
