"""The output layer and the statistics of its distribution on a GPU: logits exist in the model's dtype, a chunk of
tokens at a time, and one Triton pass over them gives everything in float32; a second turns them into their gradient in
place. Against float32 logits through torch this moves a quarter of the bytes.

Where the logits of all tokens fit into KEPT_SHARE of the device's memory they are kept for the backward pass, else
they are computed again.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from verl_core.planning.roles import KEPT_LOGITS_SHARE

KEPT_SHARE = KEPT_LOGITS_SHARE  # of the device's memory
CHUNK_BYTES = 1 << 29  # logits of a chunk, where they are not kept

_BLOCK, _WARPS = 2048, 4  # 3.9 TB/s for the gradient, 2.7 for the statistics on an H200


@triton.jit
def _statistics(
    logits_ptr, stride, ids_ptr, logp_ptr, lse_ptr, entropy_ptr, square_ptr, scale, V,
    ENTROPY: tl.constexpr, SQUARE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row a program. With x = logits * scale: the log-sum-exp, the log-prob of the row's id, the entropy
    lse - sum(p x) and the sum of squared probabilities."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride
    largest = -1e30  # finite: a block of masked logits alone must not give inf - inf
    total = 0.0
    total_x = 0.0
    total_2 = 0.0
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + column, mask=column < V, other=-float("inf")).to(tl.float32) * scale
        new = tl.maximum(largest, tl.max(x, 0))
        shrink = tl.exp(largest - new)
        e = tl.exp(x - new)
        total = total * shrink + tl.sum(e, 0)
        if ENTROPY:  # 0 * -inf of what lies behind the row's end, or of a masked logit, counts 0
            total_x = total_x * shrink + tl.sum(tl.where(e > 0, e * x, 0.0), 0)
        if SQUARE:
            total_2 = total_2 * shrink * shrink + tl.sum(e * e, 0)
        largest = new
    lse = largest + tl.log(total)
    x = tl.load(logits_ptr + tl.load(ids_ptr + row)).to(tl.float32) * scale
    tl.store(lse_ptr + row, lse)
    tl.store(logp_ptr + row, x - lse)
    if ENTROPY:
        tl.store(entropy_ptr + row, lse - total_x / total)
    if SQUARE:
        tl.store(square_ptr + row, total_2 / (total * total))


@triton.jit
def _gradient(
    logits_ptr, stride, ids_ptr, lse_ptr, entropy_ptr, d_logp_ptr, d_entropy_ptr, scale, V,
    ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Logits to their gradient, in place: scale * (d_logp (onehot - p) - d_entropy p (log p + entropy))."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logits_ptr += row * stride
    x = tl.load(logits_ptr + column, mask=column < V, other=0.0).to(tl.float32) * scale
    logp = x - tl.load(lse_ptr + row)
    p = tl.exp(logp)
    d_logp = tl.load(d_logp_ptr + row)
    d = tl.where(column == tl.load(ids_ptr + row), d_logp, 0.0) - p * d_logp
    if ENTROPY:
        inside = tl.where(p > 0, p * (logp + tl.load(entropy_ptr + row)), 0.0)
        d -= tl.load(d_entropy_ptr + row) * inside
    tl.store(logits_ptr + column, (d * scale).to(logits_ptr.dtype.element_ty), mask=column < V)


class LinearStats(torch.autograd.Function):
    """hidden [K, D], weight [V, D] -> logp_K, entropy_K, square_K (float32; the last two empty unless asked for).

    Gradients go to hidden and weight, from logp and entropy; the squares have none.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_KD: Tensor, weight_VD: Tensor, ids_K: Tensor, scale: float, entropy: bool, square: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        K, V = len(hidden_KD), len(weight_VD)
        training = any(ctx.needs_input_grad[:2])
        keep = training and K * V * hidden_KD.element_size() <= KEPT_SHARE * _device_memory(hidden_KD.device)
        rows = max(1, K if keep else CHUNK_BYTES // (V * hidden_KD.element_size()))
        new = lambda on: torch.empty(K if on else 0, dtype=torch.float32, device=hidden_KD.device)  # noqa: E731
        logp_K, lse_K, entropy_K, square_K = new(True), new(True), new(entropy), new(square)
        kept: Tensor | None = None
        for at in range(0, K, rows):
            part = slice(at, at + rows)
            logits = hidden_KD[part] @ weight_VD.t()
            _statistics[(len(logits),)](
                logits, logits.stride(0), ids_K[part], logp_K[part], lse_K[part], entropy_K[part], square_K[part],
                scale, V, ENTROPY=entropy, SQUARE=square, BLOCK=_BLOCK, num_warps=_WARPS,
            )  # fmt: skip
            kept = logits if keep else None
        ctx.save_for_backward(hidden_KD, weight_VD, ids_K, lse_K, entropy_K)
        ctx.kept, ctx.rows, ctx.scale = kept, rows, scale
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(square_K)
        return logp_K, entropy_K, square_K

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_KD, weight_VD, ids_K, lse_K, entropy_K = ctx.saved_tensors
        d_logp_K, d_entropy_K, _ = grads
        if not len(entropy_K):
            d_entropy_K = None
        if not len(hidden_KD):  # no tokens: zeros, since every rank's backward reduces every gradient
            return torch.zeros_like(hidden_KD), torch.zeros_like(weight_VD), None, None, None, None
        if d_logp_K is None and d_entropy_K is None:
            return (None,) * 6
        d_logp_K = torch.zeros_like(lse_K) if d_logp_K is None else d_logp_K.contiguous()
        d_entropy_K = d_logp_K.new_empty(0) if d_entropy_K is None else d_entropy_K.contiguous()
        K, V = len(hidden_KD), len(weight_VD)
        d_hidden_KD, d_weight_VD = torch.empty_like(hidden_KD), None
        for at in range(0, K, ctx.rows):
            part = slice(at, at + ctx.rows)
            logits, ctx.kept = ctx.kept, None
            if logits is None:
                logits = hidden_KD[part] @ weight_VD.t()
            _gradient[(len(logits), triton.cdiv(V, _BLOCK))](
                logits, logits.stride(0), ids_K[part], lse_K[part], entropy_K[part], d_logp_K[part],
                d_entropy_K[part], ctx.scale, V, ENTROPY=len(d_entropy_K) > 0, BLOCK=_BLOCK, num_warps=_WARPS,
            )  # fmt: skip
            torch.mm(logits, weight_VD, out=d_hidden_KD[part])
            if not ctx.needs_input_grad[1]:  # below an adapter the output layer is frozen
                continue
            if ctx.rows >= K:
                d_weight_VD = logits.t() @ hidden_KD
            elif d_weight_VD is None:  # chunks add up in float32
                d_weight_VD = torch.mm(logits.t(), hidden_KD[part], out_dtype=torch.float32)
            else:
                torch.addmm(
                    d_weight_VD, logits.t(), hidden_KD[part], out_dtype=torch.float32, out=d_weight_VD
                )  # fmt: skip
        d_weight_VD = None if d_weight_VD is None else d_weight_VD.to(weight_VD.dtype)
        return d_hidden_KD, d_weight_VD, None, None, None, None


@cache
def _device_memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory
