"""More of the distributions that tokens are drawn from than one log-prob: their likeliest tokens, several given tokens,
and their KL from other weights' distributions over the whole vocabulary. Plain torch for any output layer, a chunk of
tokens at a time as in `logprob`."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from verl_core.algorithms.kl import full_kl
from verl_core.training.logprob import CHUNK_ELEMENTS, Head, in_chunks


@torch.no_grad()
def top_tokens(
    hidden_KD: Tensor,
    head: Head,
    vocabulary: int,
    temperature: float,
    k: int,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens under softmax(head(hidden) / temperature), likeliest first, and their log-probs: int32 and
    float32, both [K, k]. Without gradient. Raises ValueError where there are not so many tokens."""
    if not 1 <= k <= vocabulary:
        raise ValueError(f"the {k} likeliest of {vocabulary} tokens were asked for")

    def top(hidden_KD: Tensor) -> tuple[Tensor, Tensor]:
        logits_KV = head(hidden_KD).float() / temperature
        logits_Kk, ids_Kk = logits_KV.topk(k)
        return ids_Kk.int(), logits_Kk - logits_KV.logsumexp(-1, keepdim=True)

    return cast(tuple[Tensor, Tensor], in_chunks(top, chunk_elements // vocabulary, hidden_KD))


def given_logp(
    hidden_KD: Tensor,
    ids_KJ: Tensor,
    head: Head,
    vocabulary: int,
    temperature: float,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Tensor:
    """Log-probs [K, J], float32, of ids_KJ (of any integer type) under softmax(head(hidden) / temperature)."""

    def given(hidden_KD: Tensor, ids_KJ: Tensor) -> tuple[Tensor]:
        return (_logp(head(hidden_KD), temperature).gather(1, ids_KJ.long()),)

    (logp_KJ,) = in_chunks(given, chunk_elements // vocabulary, hidden_KD, ids_KJ)
    return cast(Tensor, logp_KJ)


def kl_from(
    hidden_KD: Tensor,
    ref_hidden_KD: Tensor,
    head: Head,
    ref_head: Head,
    vocabulary: int,
    temperature: float,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Tensor:
    """KL(p, q) [K] in nats, float32, of p = softmax(head(hidden) / temperature) and q, the same of the reference, which
    gets no gradient."""

    def kl(hidden_KD: Tensor, ref_hidden_KD: Tensor) -> tuple[Tensor]:
        with torch.no_grad():
            ref_logp_KV = _logp(ref_head(ref_hidden_KD), temperature)
        return (full_kl(_logp(head(hidden_KD), temperature), ref_logp_KV),)

    (kl_K,) = in_chunks(kl, chunk_elements // (2 * vocabulary), hidden_KD, ref_hidden_KD)  # two distributions at once
    return cast(Tensor, kl_K)


def _logp(logits_KV: Tensor, temperature: float) -> Tensor:
    if temperature != 1.0:
        logits_KV = logits_KV.float() / temperature
    return logits_KV.log_softmax(-1, dtype=torch.float32)
