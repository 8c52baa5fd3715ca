"""Packed attention with soft-capped scores on a GPU (Gemma 2), by torch's flex_attention (arXiv 2412.05496): the ragged
kernels know no soft cap, and written out it takes a [T, T] matrix of scores a head."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from verl_core.models.packing import Packing, Sight


@torch.compiler.disable  # compiled by itself, so that no layer's graph makes the mask: once a micro-batch is enough
def attention(
    q: Tensor, k: Tensor, v: Tensor, packing: Packing, scale: float | None, window: int | None, softcap: float
) -> Tensor:
    """q [N, H, D]; k, v [N, K, D]; bf16 or fp16 on a GPU. Scores become softcap * tanh(score / softcap). Returns
    [N, H, D]."""

    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    q_1HND, k_1KND, v_1KND = (x.transpose(0, 1)[None] for x in (q, k, v))
    gqa = q.shape[1] != k.shape[1]
    mask = block_mask(packing, window)
    out = compiled(flex_attention)(
        q_1HND, k_1KND, v_1KND, score_mod=capped, block_mask=mask, scale=scale, enable_gqa=gqa
    )
    return cast(Tensor, out)[0].transpose(0, 1)


def block_mask(packing: Packing, window: int | None) -> BlockMask:
    """Which blocks of the row see which, made once for all layers of a window."""
    if window not in packing.block_masks:
        N = len(packing.sight.segment_N)
        packing.block_masks[window] = compiled(create_block_mask)(
            _sees(packing.sight, window or N), None, None, N, N, device=packing.device
        )
    return cast(BlockMask, packing.block_masks[window])


def _sees(sight: Sight, window: int) -> Any:
    segment, goes_on_from, position = sight

    def sees(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = position[query] - position[key]
        together = (segment[key] == segment[query]) | (segment[key] == goes_on_from[query])
        return together & (distance >= 0) & (distance < window)

    return sees


@cache
def compiled(function: Any) -> Any:
    return torch.compile(function)
