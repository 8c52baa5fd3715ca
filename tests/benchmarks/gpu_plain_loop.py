"""The yardstick of gpu_update.py: what a careful short loop reaches with the same model, precision and tokens.

    python tests/benchmarks/gpu_plain_loop.py 0.5B 1.5B 3B

transformers' Qwen2 with torch's varlen attention on packed rows, compiled layers, FSDP2 with float32 master weights, a
loss over chunks of 4,096 tokens whose logits are computed again in the backward pass, and fused AdamW; one micro-batch
of 16k tokens in sequences of 2,048 a step. One JSON line a shape, as gpu_update.py's.
"""

import json
import os
import sys
import time
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpu_update import PEAK, SHAPES, VOCABULARY, model_flops
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, Qwen2Config, Qwen2ForCausalLM

TOKENS, LENGTH, CHUNK = 16384, 2048, 4096


def attention(module, query, key, value, mask, scaling=None, cu_seqlens=None, **_):
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return varlen_attn(q, k, v, cu_seqlens, cu_seqlens, LENGTH, LENGTH, scale=scaling, window_size=(-1, 0))[None], None


def chunk_loss(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy((hidden @ weight.t()).float(), ids, reduction="sum")


class Loop(nn.Module):
    """The root that FSDP2 shards, so that the output layer's weight is gathered where it is used."""

    def __init__(self, model: Qwen2ForCausalLM):
        super().__init__()
        self.model = model
        self.chunk_loss = torch.compile(chunk_loss)

    def forward(self, ids: Tensor, position: Tensor, cu_seqlens: Tensor) -> Tensor:
        hidden = self.model.model(input_ids=ids, position_ids=position, use_cache=False, cu_seqlens=cu_seqlens)[0][0]
        weight = self.model.lm_head.weight
        parts = zip(hidden.split(CHUNK), ids[0].split(CHUNK), strict=True)
        return sum(checkpoint(self.chunk_loss, h, weight, y, use_reentrant=False) for h, y in parts) / TOKENS


def measure(shape: str) -> dict:
    AttentionInterface.register("plain_varlen", attention)
    D, ff, L, H, K = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=D, intermediate_size=ff, num_hidden_layers=L, num_attention_heads=H,
        num_key_value_heads=K, tie_word_embeddings=True, attn_implementation="plain_varlen",
    )  # fmt: skip
    with torch.device("cuda"):
        loop = Loop(Qwen2ForCausalLM(config))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in loop.model.model.layers:
        layer.compile()
        fully_shard(layer, mp_policy=policy)
    fully_shard(loop, mp_policy=policy)
    optimizer = torch.optim.AdamW(loop.parameters(), lr=1e-6, fused=True)
    cu_seqlens = torch.arange(0, TOKENS + 1, LENGTH, device="cuda", dtype=torch.int32)
    ids = torch.randint(0, VOCABULARY, (1, TOKENS), device="cuda")
    position = (torch.arange(TOKENS, device="cuda") % LENGTH)[None]
    seconds = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loop(ids, position, cu_seqlens).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    took = median(seconds[4:])
    mfu = model_flops(shape, TOKENS, LENGTH) / took / PEAK
    return {"shape": shape, "side": "plain loop", "step_s": round(took, 4), "mfu": round(mfu, 4),
            "tokens_per_s": round(TOKENS / took), "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
            "torch": torch.__version__, "gpu": torch.cuda.get_device_name()}  # fmt: skip


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl")
    for name in sys.argv[1:]:
        torch.cuda.reset_peak_memory_stats()
        print(json.dumps(measure(name)), flush=True)
        torch.cuda.empty_cache()
    dist.destroy_process_group()
