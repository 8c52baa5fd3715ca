"""FlashAttention 3 below torch's varlen attention, where its package is installed and nothing faster is."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch.nn.attention import activate_flash_attention_impl, list_flash_attention_impls

from verl_core.models import cudnn_ragged

PACKAGE = "flash_attn_interface"  # what torch's "FA3" imports its kernels from


@cache
def activate(device: torch.device) -> bool:
    """Makes torch's flash attention run on FA3's kernels, for this process, and says whether it does: on a Hopper GPU
    without cuDNN's ragged kernel."""
    if device.type != "cuda" or cudnn_ragged.usable(device) or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    if "FA3" not in list_flash_attention_impls() or find_spec(PACKAGE) is None:
        return False
    activate_flash_attention_impl("FA3")
    return True
