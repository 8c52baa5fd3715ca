"""Sums along sequences and statistics over the batch, on the produced tokens (axis M)."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_core.algorithms.produced import Produced


def discounted_sum(value_M: Tensor, at: Produced, decay: float | Tensor) -> Tensor:
    """y_t = value_t + decay * y_{t+1} within each sequence. Shape [M]; `decay` is a number or, one a sequence, [S].

    After pass k every y holds 2^k terms, so log2(longest) passes over the whole batch replace a loop over tokens.
    """
    out_M = value_M.clone()
    longest = int(at.count_S.max()) if at.M else 0
    decay_M = decay[at.seq_M] if isinstance(decay, Tensor) else None
    step = 1
    while step < longest:
        same_M = at.seq_M[step:] == at.seq_M[:-step]
        weight = decay**step if decay_M is None else decay_M[:-step] ** step
        out_M[:-step] += weight * torch.where(same_M, out_M[step:], 0.0)
        step *= 2
    return out_M


def prefix_sum(value_M: Tensor, at: Produced) -> Tensor:
    """y_t = value_1 + ... + value_t within each sequence. Shape [M]."""
    running_M = value_M.cumsum(0)
    before_S = at.count_S.cumsum(0) - at.count_S
    start_M = before_S[at.seq_M]
    return running_M - (running_M[start_M] - value_M[start_M])


def whiten(value_M: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8), var unbiased; one value alone becomes 0."""
    if len(value_M) == 0:
        return value_M
    centred_M = value_M - value_M.mean()
    var = centred_M.square().sum() / max(len(value_M) - 1, 1)
    return centred_M / (var + 1e-8).sqrt()
