"""Numbers on their way to a device and back, without a wait of the host for what the device has still to do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def upload(values: Any, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """A list of numbers (nested or not) on the device. A GPU copies it from pinned memory, which torch keeps until the
    copy is done."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


class Download:
    """The present content of a tensor, which may be overwritten afterwards."""

    def __init__(self, source: Tensor):
        if source.device.type == "cuda":
            self._copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._copy.copy_(source, non_blocking=True)
            self._arrived: torch.cuda.Event | None = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(source.device))
        else:
            self._copy, self._arrived = source.clone(), None

    def read(self) -> list[Any]:
        """Waits until the content has arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy.tolist()
