"""Where an engine's tensors are: snapshots of weights in host memory, and moving weights and optimizer between host and
device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from verl_core.training.fsdp.host_adamw import HostAdamW
from verl_core.training.fsdp.shard import local

type Snapshot = dict[str, Tensor]  # this rank's pieces by parameter name, in host memory


@torch.no_grad()
def take(parameters: Mapping[str, Tensor]) -> Snapshot:
    """A copy of this rank's pieces."""
    return {name: local(p).to("cpu", copy=True) for name, p in parameters.items()}


@torch.no_grad()
def put(parameters: Mapping[str, Tensor], snapshot: Snapshot) -> None:
    """Writes a snapshot into the live parameters; their storage stays the same."""
    for name, p in parameters.items():
        local(p).copy_(snapshot[name])


@contextmanager
def swapped(parameters: Mapping[str, Tensor], snapshot: Snapshot) -> Iterator[None]:
    """The weights are the snapshot's inside the context, and what they were before after it."""
    before = take(parameters)
    put(parameters, snapshot)
    try:
        yield
    finally:
        put(parameters, before)


def move_optimizer(optimizers: list[Optimizer], device: torch.device | str) -> None:
    """Moves all optimizer state but that which lives in host memory."""
    for optimizer in optimizers:
        if isinstance(optimizer, HostAdamW):
            continue
        for entry in optimizer.state.values():
            for key, value in entry.items():
                if isinstance(value, Tensor):
                    entry[key] = value.to(device)
