"""The log-prob of each drawn id by one pass over its logits, where vLLM's sampler makes three (maximum, sum, rank)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 8192, 8


@triton.jit
def _logp(logits_ptr, stride, ids_ptr, logp_ptr, V, BLOCK: tl.constexpr):
    """One row a program, in float32."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride
    largest = -1e30  # finite: a block of masked logits alone must not give inf - inf
    total = 0.0
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + column, mask=column < V, other=-float("inf")).to(tl.float32)
        new = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new), 0)
        largest = new
    x = tl.load(logits_ptr + tl.load(ids_ptr + row)).to(tl.float32)
    tl.store(logp_ptr + row, x - largest - tl.log(total))


def logp_of(logits_RV: Tensor, ids_R: Tensor) -> Tensor:
    """Float32 log-probs [R] of one id a row under the softmax of its logits."""
    R, V = logits_RV.shape
    logp_R = torch.empty(R, dtype=torch.float32, device=logits_RV.device)
    if R:
        _logp[(R,)](logits_RV, logits_RV.stride(0), ids_R, logp_R, V, BLOCK=_BLOCK, num_warps=_WARPS)
    return logp_R


class DrawnLogps(NamedTuple):
    """In the place of vLLM's LogprobsTensors and LogprobsLists: what `Sampled` reads of them, [R, 1]. vLLM copies it
    to the host by these two calls."""

    logprobs: Any

    def to_cpu_nonblocking(self) -> DrawnLogps:
        return DrawnLogps(self.logprobs.to("cpu", non_blocking=True))

    def tolists(self) -> DrawnLogps:
        return DrawnLogps(self.logprobs.numpy())


def take_over() -> None:
    """Gives the sampler of vLLM's GPU runner, in this process, the kernel above for steps in which rows want their
    drawn id's log-prob and no other, which are all of rlx's."""
    import vllm.v1.worker.gpu.sample.sampler as vllm_sampler

    whole = vllm_sampler.compute_topk_scores

    def scores(logits: Tensor, num_logprobs: int, drawn_R: Tensor, cu: Any = None, **more: Any) -> Any:
        if num_logprobs or cu is not None or more.get("max_per_req_token_ids") or more.get("logits_mode"):
            return whole(logits, num_logprobs, drawn_R, cu, **more)
        return DrawnLogps(logp_of(logits, drawn_R)[:, None])

    vllm_sampler.compute_topk_scores = scores
