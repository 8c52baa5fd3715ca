"""Log-prob and entropy of chosen tokens from hidden states, a chunk of tokens at a time, so that float32 logits of all
tokens never exist at once: with a vocabulary of 150,000 they would be 0.6 GB a thousand tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 1 << 27  # logits a chunk: 0.5 GiB in float32, and about four such tensors live at the peak

type Head = Callable[[Tensor], Tensor]  # hidden [K, D] -> logits [K, V]


def token_stats(
    hidden_KD: Tensor,
    ids_K: Tensor,
    head: Head,
    vocabulary: int,
    temperature: float,
    entropy: bool,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of ids_K under softmax(head(hidden) / temperature) and, when asked for, the entropy of that
    distribution in nats. Shapes [K], float32; differentiable. With more than one chunk the logits are computed again
    in the backward pass."""
    rows = max(1, chunk_elements // vocabulary)
    if len(ids_K) <= rows:
        return _stats(hidden_KD, ids_K, head, temperature, entropy)
    parts = [
        checkpoint(_stats, hidden, ids, head, temperature, entropy, use_reentrant=False, preserve_rng_state=False)
        for hidden, ids in zip(hidden_KD.split(rows), ids_K.split(rows), strict=True)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]) if entropy else None


def _stats(
    hidden_KD: Tensor, ids_K: Tensor, head: Head, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    logits_KV = head(hidden_KD).float()
    if temperature != 1.0:
        logits_KV = logits_KV / temperature
    logp_KV = logits_KV.log_softmax(-1)
    logp_K = logp_KV.gather(1, ids_K[:, None])[:, 0]
    return logp_K, _Entropy.apply(logp_KV) if entropy else None


class _Entropy(torch.autograd.Function):
    """Entropy -sum p log p of rows of log-probs. Own function: it keeps no second [K, V] tensor for the backward
    pass, and a zero probability (log-prob -inf) adds 0 rather than NaN."""

    @staticmethod
    def forward(ctx, logp_KV: Tensor) -> Tensor:
        ctx.save_for_backward(logp_KV)
        return -_p_log_p(logp_KV).sum(-1)

    @staticmethod
    def backward(ctx, grad_K: Tensor) -> Tensor:  # type: ignore[override]
        (logp_KV,) = ctx.saved_tensors
        return -(_p_log_p(logp_KV) + logp_KV.exp()) * grad_K[:, None]


def _p_log_p(logp_KV: Tensor) -> Tensor:
    return logp_KV.exp() * logp_KV.clamp(min=torch.finfo(logp_KV.dtype).min)
