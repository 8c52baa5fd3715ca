"""Packed attention: S sequences in one row of N tokens, each token sees only its own sequence. Registered with
transformers as `rlx_packed`, so that the library's model code runs packed unchanged.

The model is called on `ids[1, N]` with `attention_mask=None` and `packing=Packing.of(...)`, which transformers hands
down to the attention function. No mask is built: transformers makes none for a name that has no mask function.
Back ends: for bf16 and fp16 on a GPU cuDNN's ragged kernel (Hopper and newer) or torch's varlen flash kernel;
elsewhere, and for what those cannot do (float32, soft caps, dropout, head sizes above 256), the rows are padded to
[S, T] inside this function.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from verl_core.config.errors import UserError
from verl_core.models import cudnn_ragged
from verl_core.models.ulysses import Split, over_split_rows

NAME = "rlx_packed"
CHOOSE_ANOTHER = "choose a model with plain causal attention, e.g. Qwen2, Qwen3, Llama, Mistral or Gemma"
FLASH_HEAD_DIM = 256  # largest head the flash kernel takes


class Packing:
    """Where the sequences lie in a packed row. Made once a micro-batch, shared by all layers. (FSDP2 would take a
    dataclass apart and make it anew for every layer.)

    cu_B1: offsets of the sequences and, at the end, of empty ones, int32 on the device; longest: not less than the
    longest sequence. What kernels read is rounded up to powers of two, so that compiled layers and kernels' plans see
    few different shapes. cudnn: whether cuDNN's kernel is there. split: this rank's part where ranks split the row.
    """

    def __init__(self, length_S: tuple[int, ...], device: torch.device, split: Split | None = None):
        self.length_S, self.device, self.split = length_S, device, split
        count = max(8, _power_of_two(self.S))
        lengths = torch.tensor(length_S + (0,) * (count - self.S), dtype=torch.int32)
        offsets = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        if device.type == "cuda":
            offsets = offsets.pin_memory()  # pageable memory would make the host wait for the device
        self.cu_B1 = offsets.to(device, non_blocking=True)
        self.longest = max(128, _power_of_two(self.T))
        self.cudnn = cudnn_ragged.usable(device)

    @property
    def S(self) -> int:
        return len(self.length_S)

    @cached_property
    def T(self) -> int:
        """The longest sequence."""
        return max(self.length_S)

    @cached_property
    def slot_N(self) -> Tensor | None:
        """Row-major place of each token in the padded [S, T] layout; None when all lengths are equal (no padding)."""
        if min(self.length_S) == self.T:
            return None
        present_ST = torch.arange(self.T)[None] < torch.tensor(self.length_S)[:, None]
        return present_ST.flatten().nonzero()[:, 0].to(self.device)

    def pad(self, x_ND: Tensor) -> Tensor:
        """[N, ...] to [S, T, ...], zeros behind each sequence; differentiable."""
        if self.slot_N is not None:
            x_ND = _Scatter.apply(x_ND, self.slot_N, self.S * self.T)
        return x_ND.unflatten(0, (self.S, self.T))

    def unpad(self, x_STD: Tensor) -> Tensor:
        """The inverse of `pad`."""
        flat = x_STD.flatten(0, 1)
        return flat if self.slot_N is None else _Gather.apply(flat, self.slot_N)


class _Scatter(torch.autograd.Function):
    """Rows to distinct places. Own function because autograd's gradient of a gather adds atomically (slow, and not
    deterministic on a GPU), which distinct places do not need."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slot: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(slot)
        return x.new_zeros(rows, *x.shape[1:]).index_copy_(0, slot, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (slot,) = ctx.saved_tensors
        return grad.index_select(0, slot), None, None


class _Gather(torch.autograd.Function):
    """Rows from distinct places; see `_Scatter`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slot: Tensor) -> Tensor:
        ctx.save_for_backward(slot)
        ctx.rows = x.shape[0]
        return x.index_select(0, slot)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (slot,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, *grad.shape[1:]).index_copy_(0, slot, grad), None


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
    # Padding lies behind each sequence, where causal attention cannot see it, so no padding mask is needed.
    q, k, v = (packing.pad(x).transpose(1, 2) for x in (q_NHD, k_NKD, v_NKD))  # [S, H, T, D]
    mask_TT = _window_mask(packing, sliding_window)
    if softcap is None:
        gqa = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(
            q, k, v, mask_TT, dropout, is_causal=mask_TT is None, scale=scaling, enable_gqa=gqa
        )
    else:
        out = _capped_attention(q, k, v, mask_TT, dropout, scaling, softcap)
    return packing.unpad(out.transpose(1, 2))[None], None


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _kernel(q: Tensor, k: Tensor, v: Tensor, packing: Packing, scaling: float | None, window: int | None) -> Tensor:
    cu, longest, D = packing.cu_B1, packing.longest, q.shape[-1]
    if packing.cudnn and D <= cudnn_ragged.HEAD_DIM and D % 8 == 0:
        return cudnn_ragged.attention(q, k, v, cu, longest, D**-0.5 if scaling is None else scaling, window or 0)
    sees = (-1 if window is None else window - 1, 0)
    return cast(Tensor, varlen_attn(q, k, v, cu, cu, longest, longest, scale=scaling, window_size=sees))


def _has_kernel(query: Tensor, value: Tensor) -> bool:
    """Whether the flash kernels take these tensors."""
    half = query.dtype in (torch.bfloat16, torch.float16)
    return query.is_cuda and half and value.shape[-1] == query.shape[-1] <= FLASH_HEAD_DIM


def _window_mask(packing: Packing, sliding_window: int | None) -> Tensor | None:
    """[T, T], True where query (row) sees key (column); None when the window is at least as long as every sequence."""
    if sliding_window is None or sliding_window >= packing.T:
        return None
    position = torch.arange(packing.T, device=packing.device)
    distance_TT = position[:, None] - position[None]
    return (distance_TT >= 0) & (distance_TT < sliding_window)


def _capped_attention(
    q: Tensor, k: Tensor, v: Tensor, mask_TT: Tensor | None, dropout: float, scaling: float | None, softcap: float
) -> Tensor:
    """Attention with soft-capped scores written out, softmax in float32, as Gemma 2 defines it (arXiv 2408.00118)."""
    ratio = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(ratio, 1), v.repeat_interleave(ratio, 1)
    score = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    score = softcap * torch.tanh(score / softcap)
    if mask_TT is None:
        mask_TT = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device).tril()
    weight = score.masked_fill(~mask_TT, float("-inf")).softmax(-1, dtype=torch.float32).to(q.dtype)
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
