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
    """A copy of this rank's pieces, pinned where they come from a GPU."""
    pieces = {name: local(p) for name, p in parameters.items()}
    taken = {name: torch.empty_like(x, device="cpu", pin_memory=x.is_cuda) for name, x in pieces.items()}
    for name, x in pieces.items():
        taken[name].copy_(x)
    return taken


@contextmanager
def swapped(parameters: Mapping[str, Tensor], snapshot: Snapshot) -> Iterator[None]:
    """The weights are the snapshot's inside the context, and what they were before after it. Their storage stays the
    same; meanwhile the snapshot's holds what they were."""
    exchange(parameters, snapshot)
    try:
        yield
    finally:
        exchange(parameters, snapshot)


@torch.no_grad()
def exchange(parameters: Mapping[str, Tensor], snapshot: Snapshot) -> None:
    """By way of one buffer for the largest tensor, made first: where memory runs out, nothing has changed."""
    pieces = {name: local(p) for name, p in parameters.items()}
    if not pieces:
        return
    device = next(iter(pieces.values())).device
    spare = torch.empty(max(x.nbytes for x in pieces.values()), dtype=torch.uint8, device=device)
    for name, piece in pieces.items():
        before = spare[: piece.nbytes].view(piece.dtype).view(piece.shape)
        before.copy_(piece)
        piece.copy_(snapshot[name], non_blocking=True)  # in the order of the stream, so nothing is overwritten unread
        snapshot[name].copy_(before, non_blocking=True)


def move_optimizer(optimizers: list[Optimizer], device: torch.device | str) -> None:
    """Moves all optimizer state but that which lives in host memory."""
    for optimizer in optimizers:
        if isinstance(optimizer, HostAdamW):
            continue
        for entry in optimizer.state.values():
            for key, value in entry.items():
                if isinstance(value, Tensor):
                    entry[key] = value.to(device)
