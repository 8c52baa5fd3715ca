"""Adding up a model's half-precision gradients in float32 by one kernel. torch adds tensors of two types one by one, at
half of the memory's speed, and each takes its launch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _add(sum_ptrs, part_ptrs, sizes, tensor_of_block, start_of_block, TYPE: tl.constexpr, FIRST: tl.constexpr,
         BLOCK: tl.constexpr):  # fmt: skip
    """One block of one tensor a program."""
    block = tl.program_id(0)
    tensor = tl.load(tensor_of_block + block)
    at = tl.multiple_of(tl.load(start_of_block + block), BLOCK) + tl.arange(0, BLOCK)
    present = at < tl.load(sizes + tensor)
    part_at = tl.multiple_of(tl.load(part_ptrs + tensor).to(tl.pointer_type(TYPE)) + at, 16)
    sum_at = tl.multiple_of(tl.load(sum_ptrs + tensor).to(tl.pointer_type(tl.float32)) + at, 16)
    value = tl.load(part_at, mask=present).to(tl.float32)
    if not FIRST:
        value += tl.load(sum_at, mask=present)
    tl.store(sum_at, value, mask=present)


def add(sums: Sequence[Tensor], parts: Sequence[Tensor], first: bool) -> None:
    """sums[i] += parts[i]; first: sums[i] = parts[i]. Float32 and bf16 or fp16 on one GPU, of equal sizes, contiguous
    and on addresses that 16 divides."""
    device = sums[0].device
    sizes, tensor_of_block, start_of_block = _blocks(tuple(x.numel() for x in sums), device)
    addresses = torch.tensor([[x.data_ptr() for x in sums], [x.data_ptr() for x in parts]]).pin_memory()
    addresses = addresses.to(device, non_blocking=True)
    _add[(len(tensor_of_block),)](
        addresses[0], addresses[1], sizes, tensor_of_block, start_of_block,
        TYPE=_TYPES[parts[0].dtype], FIRST=first, BLOCK=_BLOCK, num_warps=8,
    )  # fmt: skip


def takes(x: Tensor) -> bool:
    """Whether `add` can read x as it is."""
    return x.is_contiguous() and x.data_ptr() % 16 == 0


@lru_cache(maxsize=8)
def _blocks(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Sizes on the device, and of each block its tensor and where in it it starts."""
    size_S = torch.tensor(sizes)
    count_S = (size_S + _BLOCK - 1) // _BLOCK
    tensor_B = torch.repeat_interleave(torch.arange(len(sizes)), count_S)
    start_B = (torch.arange(len(tensor_B)) - (count_S.cumsum(0) - count_S)[tensor_B]) * _BLOCK
    return size_S.to(device), tensor_B.int().to(device), start_B.to(device)
