"""GRPO loss from hidden states: rlx's output-layer statistics against Liger's fused GRPO loss and plain torch.

    python tests/benchmarks/gpu_loss.py 2 4 8 16

Liger's published shape: T 1024 tokens, H 4096, V 128256, bf16; KL to a reference (0.04, k3), token mean. Each batch
size prints one JSON line: peak memory above what the inputs take, and median milliseconds of forward and backward, for
the sides in turn (eight rounds, three of warm-up): rlx with logits computed again in the backward pass and, as engines
have it where there is room for them, kept; Liger with and without its compiled loss; torch. The gate: one loss (1e-2
relative; logits are bf16) and one gradient direction.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from verl_core.training import logprob_triton
from verl_core.training.logprob import fused_token_stats

T, H, V = 1024, 4096, 128256
BETA = 0.04
ROUNDS, WARM = 8, 3
KEPT = logprob_triton.KEPT_SHARE


def loss_of(logp: Tensor, old: Tensor, ref: Tensor, advantage: Tensor) -> Tensor:
    ratio = (logp - old).exp()
    policy = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    kl = (ref - logp).exp() - (ref - logp) - 1
    return (policy + BETA * kl).mean()


def sides(hidden: Tensor, weight: Tensor, ids: Tensor, old: Tensor, ref: Tensor, adv: Tensor) -> dict[str, Callable]:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    per_token = adv[:, None].expand(ids.shape).flatten()
    mask = torch.ones_like(ids)
    compiled, eager = (
        LigerFusedLinearGRPOLoss(beta=BETA, loss_type="bnpo", use_ref_model=True, compiled=c) for c in (True, False)
    )

    def rlx(kept_share: float) -> Tensor:
        logprob_triton.KEPT_SHARE = kept_share
        logp = fused_token_stats(hidden.flatten(0, 1), weight, ids.flatten(), 1.0, entropy=False, square=False).logp_K
        return loss_of(logp, old.flatten(), ref.flatten(), per_token)

    def liger(loss: Callable) -> Tensor:
        return loss(
            hidden, weight, ids, mask, adv, ref_per_token_logps=ref, old_per_token_logps=old
        )[0]  # fmt: skip

    def plain() -> Tensor:
        logp = -F.cross_entropy((hidden.flatten(0, 1) @ weight.t()).float(), ids.flatten(), reduction="none")
        return loss_of(logp, old.flatten(), ref.flatten(), per_token)

    return {
        "rlx": partial(rlx, 0.0), "rlx_kept": partial(rlx, KEPT), "liger": partial(liger, eager),
        "liger_compiled": partial(liger, compiled), "torch": plain,
    }  # fmt: skip


def run(B: int) -> dict:
    torch.manual_seed(0)
    new = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)  # noqa: E731
    hidden, weight = new(B, T, H).requires_grad_(), (new(V, H) * 0.02).requires_grad_()
    ids = torch.randint(0, V, (B, T), device="cuda")
    with torch.no_grad():
        logp = fused_token_stats(hidden.flatten(0, 1), weight, ids.flatten(), 1.0, False, False).logp_K.view(B, T)
    old, ref = (logp + 0.1 * torch.randn_like(logp) for _ in range(2))
    adv = torch.randn(B, device="cuda")
    result: dict = {
        "B": B,
        "T": T,
        "H": H,
        "V": V,
        "gpu": torch.cuda.get_device_name(),
        "torch_version": torch.__version__,
    }
    times: dict[str, list[float]] = {}
    gradients: dict[str, Tensor] = {}
    torch._dynamo.reset()  # Liger's compiled loss fails on a second batch size (torch 2.11)
    sides_ = sides(hidden, weight, ids, old, ref, adv)
    for round_ in range(ROUNDS):
        for name, side in sides_.items():
            hidden.grad = weight.grad = None
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            start = time.perf_counter()
            try:
                loss = side()
                loss.backward()
                torch.cuda.synchronize()
            except torch.OutOfMemoryError:
                result[f"{name}_ms"] = result[f"{name}_peak_mb"] = None
                continue
            if round_ >= WARM:
                times.setdefault(name, []).append(1e3 * (time.perf_counter() - start))
            result[f"{name}_peak_mb"] = round((torch.cuda.max_memory_allocated() - before) / 2**20)
            result[f"{name}_loss"] = round(float(loss.detach()), 5)
            gradients[name] = hidden.grad.flatten().float()
    result |= {f"{name}_ms": round(median(values), 1) for name, values in times.items()}
    result["same_loss"] = abs(result["rlx_loss"] - result["liger_loss"]) <= 1e-2 * abs(result["liger_loss"]) + 1e-4
    result["gradient_cosine"] = round(float(F.cosine_similarity(gradients["rlx"], gradients["liger"], dim=0)), 5)
    return result


if __name__ == "__main__":
    for word in sys.argv[1:] or ["2", "4", "8", "16"]:
        print(json.dumps(run(int(word))), flush=True)
        torch.cuda.empty_cache()
