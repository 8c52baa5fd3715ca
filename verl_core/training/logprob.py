"""Log-prob, entropy and sum of squared probabilities of chosen tokens from hidden states, a chunk of tokens at a time,
so that float32 logits of all tokens never exist at once: with a vocabulary of 150,000 they would be 0.6 GB a thousand
tokens. On a GPU in half precision `logprob_triton` does the same with less traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 1 << 27  # logits a chunk: 0.5 GiB in float32, and about four such tensors live at the peak

type Head = Callable[[Tensor], Tensor]  # hidden [K, D] -> logits [K, V]


class Stats(NamedTuple):
    """Of the distributions that tokens were drawn from, each [K] float32; None for what was not asked for."""

    logp_K: Tensor
    entropy_K: Tensor | None
    square_K: Tensor | None


def token_stats(
    hidden_KD: Tensor,
    ids_K: Tensor,
    head: Head,
    vocabulary: int,
    temperature: float,
    entropy: bool,
    square: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Stats:
    """Log-prob of ids_K under softmax(head(hidden) / temperature) and, when asked for, the entropy of that
    distribution in nats and its sum of squared probabilities. The first two are differentiable. With more than one
    chunk the logits are computed again in the backward pass."""

    def stats(hidden_KD: Tensor, ids_K: Tensor) -> tuple[Tensor | None, ...]:
        return _TokenStats.apply(head(hidden_KD), ids_K, temperature, entropy, square)

    found = in_chunks(stats, chunk_elements // vocabulary, hidden_KD, ids_K)
    return Stats(*found)  # type: ignore[arg-type]  # log-probs are never None


def in_chunks(
    function: Callable[..., tuple[Tensor | None, ...]], rows: int, *inputs: Tensor
) -> tuple[Tensor | None, ...]:
    """What `function` makes of inputs [K, ...], so many rows at a time (at least one). With more than one chunk, each
    is computed again in the backward pass."""
    rows = max(1, rows)
    if len(inputs[0]) <= rows:
        return function(*inputs)
    chunks = zip(*(x.split(rows) for x in inputs), strict=True)
    parts = [checkpoint(function, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    return tuple(None if part[0] is None else torch.cat(part) for part in zip(*parts, strict=True))


def fused_token_stats(
    hidden_KD: Tensor, weight_VD: Tensor, ids_K: Tensor, scale: float, entropy: bool, square: bool
) -> Stats:
    """The same for logits `scale * hidden @ weight.T` on a GPU in half precision."""
    from verl_core.training.logprob_triton import LinearStats

    logp_K, entropy_K, square_K = LinearStats.apply(hidden_KD, weight_VD, ids_K, scale, entropy, square)
    return Stats(logp_K, entropy_K if entropy else None, square_K if square else None)


class _TokenStats(torch.autograd.Function):
    """logits [K, V] to log-prob of ids and entropy, [K]. Own function because memory traffic over [K, V] is what this
    costs: one such tensor is kept for the backward pass, and a quantity that gets no gradient costs nothing there.
    With p = softmax(logits), d logp / d logits = onehot(ids) - p and d entropy / d logits = -p log p - p entropy; a
    zero probability adds 0 to both."""

    @staticmethod
    def forward(
        ctx: Any, logits_KV: Tensor, ids_K: Tensor, temperature: float, entropy: bool, square: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if temperature != 1.0:
            logits_KV = logits_KV.float() / temperature
        logp_KV = logits_KV.log_softmax(-1, dtype=torch.float32)
        entropy_K = torch.special.entr(logp_KV.exp()).sum(-1) if entropy else None
        square_K = (2 * logp_KV).exp().sum(-1) if square else None
        ctx.save_for_backward(logp_KV, ids_K, entropy_K)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        if square_K is not None:
            ctx.mark_non_differentiable(square_K)
        return logp_KV.gather(1, ids_K[:, None])[:, 0], entropy_K, square_K

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        logp_KV, ids_K, entropy_K = ctx.saved_tensors
        d_logp_K, d_entropy_K, _ = grads
        p_KV = logp_KV.exp()
        if d_entropy_K is None:
            if d_logp_K is None:
                return None, None, None, None, None
            d_logits_KV = p_KV.mul_(-d_logp_K[:, None])
        else:
            weight_K = -d_entropy_K * entropy_K - (0.0 if d_logp_K is None else d_logp_K)
            d_logits_KV = torch.special.entr(p_KV).mul_(d_entropy_K[:, None]).addcmul_(p_KV, weight_K[:, None])
        if d_logp_K is not None:
            d_logits_KV.scatter_add_(1, ids_K[:, None], d_logp_K[:, None])
        if ctx.temperature != 1.0:
            d_logits_KV.div_(ctx.temperature)
        return d_logits_KV, None, None, None, None
