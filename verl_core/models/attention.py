"""Packed attention: S sequences in one row of N tokens, each token sees only its own sequence. Registered with
transformers as `rlx_packed`, so that the library's model code runs packed unchanged.

The model is called on `ids[1, N]` with `attention_mask=None` and `packing=Packing.of(...)`, which transformers hands
down to the attention function. No mask is built: transformers makes none for a name that has no mask function.
Back ends: for bf16 and fp16 on a GPU cuDNN's ragged kernel (Hopper and newer) or torch's varlen flash kernel, and
flex_attention for soft caps; elsewhere, and for what those cannot do (float32, dropout, head sizes above 256), the rows
are padded to [S, T] inside this function. docs/attention.md has the table.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from verl_core.config.errors import UserError
from verl_core.models import cudnn_ragged, flex
from verl_core.models.packing import Packing
from verl_core.models.ulysses import over_split_rows

NAME = "rlx_packed"
CHOOSE_ANOTHER = "choose a model with plain causal attention, e.g. Qwen2, Qwen3, Llama, Mistral or Gemma"
FLASH_HEAD_DIM = 256  # largest head the flash kernel takes


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention of a packed row. query [1, H, N, D]; key, value [1, K, N, D], K divides H. Returns [1, N, H, D].

    `sliding_window` w: a token sees itself and the w-1 before it. `softcap` c: scores become c*tanh(score/c).
    Raises UserError for model code that cannot run packed: it asks for a mask or for attention sinks, or keeps
    `packing` to itself.
    """
    if packing is None or attention_mask is not None or s_aux is not None:
        what = "attention sinks" if s_aux is not None else "a mask" if attention_mask is not None else "padded rows"
        raise UserError(f"{type(module).__name__} computes attention over {what}; training runs packed", CHOOSE_ANOTHER)
    q_NHD, k_NKD, v_NKD = (x[0].transpose(0, 1) for x in (query, key, value))
    if softcap is None and not dropout and _has_kernel(q_NHD, v_NKD):
        return _kernel(q_NHD, k_NKD, v_NKD, packing, scaling, sliding_window)[None], None
    if softcap is not None and not dropout and _has_kernel(q_NHD, v_NKD):
        return flex.attention(q_NHD, k_NKD, v_NKD, packing, scaling, sliding_window, softcap)[None], None
    attend = partial(_attend, dropout=dropout, scaling=scaling, softcap=softcap)
    return packing.padded(q_NHD, k_NKD, v_NKD, sliding_window, attend)[None], None


def _kernel(q: Tensor, k: Tensor, v: Tensor, packing: Packing, scaling: float | None, window: int | None) -> Tensor:
    """Where a sequence has more keys than queries, its last query stands at its last key."""
    k, v, D = packing.keys(k), packing.keys(v), q.shape[-1]
    ragged = (q, k, v, packing.cu_B1, packing.key_cu_B1)
    if packing.cudnn and D <= cudnn_ragged.HEAD_DIM and D % 8 == 0:
        scale = D**-0.5 if scaling is None else scaling
        return cudnn_ragged.attention(*ragged, packing.limit, packing.key_limit, scale, window or 0)
    sees = (-1 if window is None else window - 1, 0)
    longest = packing.longest, packing.longest_keys
    return cast(Tensor, varlen_attn(*ragged, *longest, scale=scaling, window_size=sees))


def _has_kernel(query: Tensor, value: Tensor) -> bool:
    """Whether the flash kernels take these tensors."""
    half = query.dtype in (torch.bfloat16, torch.float16)
    return query.is_cuda and half and value.shape[-1] == query.shape[-1] <= FLASH_HEAD_DIM


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scaling: float | None, softcap: float | None
) -> Tensor:
    """See `Attend`."""
    if softcap is not None:
        return _capped_attention(q, k, v, mask, dropout, scaling, softcap)
    gqa = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=mask is None, scale=scaling, enable_gqa=gqa)


def _capped_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scaling: float | None, softcap: float
) -> Tensor:
    """Attention with soft-capped scores written out, softmax in float32, as Gemma 2 defines it (arXiv 2408.00118)."""
    ratio = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(ratio, 1), v.repeat_interleave(ratio, 1)
    score = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    score = softcap * torch.tanh(score / softcap)
    if mask is None:
        mask = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device).tril()
    weight = score.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32).to(q.dtype)
    return F.dropout(weight, dropout) @ v


def check_packable(config: Any) -> None:
    """Raises UserError for an architecture whose layers see more than a causal (or sliding) window of their sequence's
    keys, since packing would change its results silently."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds or getattr(text, "attention_chunk_size", None):
        what = ", ".join(sorted(kinds)) or f"attention_chunk_size={text.attention_chunk_size}"
        raise UserError(
            f"model type {config.model_type!r} has {what}; packed training knows full and sliding-window attention",
            hint=CHOOSE_ANOTHER,
        )


AttentionInterface.register(NAME, over_split_rows(packed_attention))
