"""A process group beside torch's default one: the trainer rank that sends and the receivers, built once and kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import BroadcastOptions, PrefixStore, TCPStore, Work


class Group:
    """Rank 0 sends. NCCL for CUDA devices, gloo for the CPU. `store` needs a connection of its own (`Mailbox.twin`):
    the group's threads use it too."""

    def __init__(self, store: TCPStore, rank: int, size: int, device: torch.device, timeout_s: float):
        limit = timedelta(seconds=timeout_s)
        prefix = PrefixStore("weights", store)
        self._group: Any  # one of torch's back ends
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            self._group = dist.ProcessGroupNCCL(prefix, rank, size, options)
        else:
            self._group = dist.ProcessGroupGloo(prefix, rank, size, limit)

    def broadcast(self, flat: Tensor) -> Work:
        """Starts sending (rank 0) or receiving `flat`; `wait()` on the result orders what follows behind it."""
        options = BroadcastOptions()
        options.rootRank = 0
        return self._group.broadcast([flat], options)

    def abort(self) -> None:
        """Ends what is under way with an error, on every thread that waits for it. The group is of no use then."""
        self._group.abort()
