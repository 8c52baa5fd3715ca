"""Which errors say that memory ran out."""

from __future__ import annotations

import torch

_CPU_TEXT = "DefaultCPUAllocator"  # how torch's CPU allocator words it; on a GPU it has a class of its own


def ran_out(error: BaseException) -> bool:
    """Whether a device or the machine had no more memory."""
    on_cpu = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _CPU_TEXT in str(error))
    return on_cpu or isinstance(error, torch.OutOfMemoryError)
