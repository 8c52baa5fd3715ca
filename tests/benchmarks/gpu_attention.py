"""Attention of packed rows, forward and backward: cuDNN's ragged kernel, torch's varlen kernel and flex_attention.

    python tests/benchmarks/gpu_attention.py

8 x 2,048 tokens in bf16, 2 key heads, causal. One JSON line a head shape (Qwen2.5's 0.5B, 1.5B and 3B): median
milliseconds of each, measured in turn, and how far apart the outputs are.
"""

import json

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from triton.testing import do_bench

from verl_core.models import cudnn_ragged
from verl_core.models.packing import Packing

S, T, KEY_HEADS = 8, 2048, 2


def measure(heads: int, D: int) -> dict:
    N = S * T
    new = lambda h: torch.randn(N, h, D, device="cuda", dtype=torch.bfloat16, requires_grad=True)  # noqa: E731
    q, k, v, weight = new(heads), new(KEY_HEADS), new(KEY_HEADS), new(heads).detach()
    packing = Packing((T,) * S, torch.device("cuda"))
    cu, longest, limit = packing.cu_B1, packing.longest, packing.limit
    document = torch.arange(N, device="cuda") // T
    sees = create_block_mask(
        lambda b, h, i, j: (i >= j) & (document[i] == document[j]), None, None, N, N, device="cuda"
    )
    flex = torch.compile(flex_attention, dynamic=False)

    def by_flex() -> Tensor:
        rows = (x.transpose(0, 1)[None] for x in (q, k, v))
        return flex(*rows, block_mask=sees, enable_gqa=True)[0].transpose(0, 1)

    sides = {
        "cudnn": lambda: cudnn_ragged.attention(q, k, v, cu, cu, limit, limit, D**-0.5, 0),
        "varlen": lambda: varlen_attn(q, k, v, cu, cu, longest, longest, window_size=(-1, 0)),
        "flex": by_flex,
    }
    result: dict = {"heads": heads, "head_dim": D}
    for name, side in sides.items():
        times = do_bench(lambda side=side: torch.autograd.grad(side(), (q, k, v), weight), return_mode="median")
        result[f"{name}_ms"] = round(times, 3)
    outputs = {name: side().detach().float() for name, side in sides.items()}
    result["apart"] = float(f"{(outputs['cudnn'] - outputs['varlen']).norm() / outputs['varlen'].norm():.1e}")
    return result | {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}


if __name__ == "__main__":
    for shape in ((14, 64), (12, 128), (16, 128)):
        print(json.dumps(measure(*shape)), flush=True)
