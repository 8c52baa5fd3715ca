"""AdamW whose state lies in host memory and whose step runs there: the device keeps parameters and gradients only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from verl_core.training.fsdp.shard import local


@contextmanager
def _all_cores() -> Iterator[None]:
    """This rank's share of the machine's cores, beside a GPU; everything else on the host computes with few threads."""
    before = torch.get_num_threads()
    if gpus := torch.cuda.device_count():
        torch.set_num_threads(max(before, len(os.sched_getaffinity(0)) // gpus))
    try:
        yield
    finally:
        torch.set_num_threads(before)


class HostAdamW(AdamW):
    """torch's fused AdamW over host copies of this rank's pieces. `state` is keyed by the device's parameters, as every
    optimizer's here is, and holds host tensors of their placement."""

    def __init__(self, params: Iterable[Tensor], **options: Any):
        super().__init__(params, fused=True, **options)
        self._copies: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Copies parameters and gradients over, steps on the host, and copies the parameters back."""
        trained = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p in trained:
            copy, grad = self._copy_of(p), local(p.grad)
            copy.copy_(local(p), non_blocking=True)  # the weights may have been loaded or replaced since
            copy.grad.copy_(grad, non_blocking=True)  # type: ignore[union-attr]
        if any(local(p).is_cuda for p in trained):
            torch.cuda.current_stream().synchronize()
        groups = [{**group, "params": self._copies_of(group["params"])} for group in self.param_groups]
        on_host = AdamW([group for group in groups if group["params"]], fused=True)
        for p in trained:
            on_host.state[self._copies[p]] = {key: local(value) for key, value in self._state_of(p).items()}
        with _all_cores():
            on_host.step()
        for p in trained:
            local(p).copy_(self._copies[p], non_blocking=True)

    def _copies_of(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        return [self._copies[p] for p in parameters if p.grad is not None]

    def _copy_of(self, p: Tensor) -> Tensor:
        if p not in self._copies:
            pinned = local(p).is_cuda
            self._copies[p] = torch.empty(local(p).shape, dtype=p.dtype, pin_memory=pinned)
            self._copies[p].grad = torch.empty(local(p).shape, dtype=p.dtype, pin_memory=pinned)
        return self._copies[p]

    def _state_of(self, p: Tensor) -> dict[str, Tensor]:
        if not self.state[p]:
            new = lambda: torch.zeros_like(p, device="cpu", requires_grad=False)  # noqa: E731
            self.state[p] = {"step": torch.tensor(0.0), "exp_avg": new(), "exp_avg_sq": new()}
        return self.state[p]
