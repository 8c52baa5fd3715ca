from __future__ import annotations

import torch
from torch import Tensor


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> None:
    """Rotates query and key (each [N, heads * head_size]) in place, halves against halves."""
    assert is_neox
    cos, sin = cos_sin_cache[positions.flatten()].to(query.dtype)[:, None].chunk(2, dim=-1)
    for x in (query, key):
        heads = x.view(x.shape[0], -1, head_size)
        first, second = heads.chunk(2, dim=-1)
        heads.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
