"""One rank's mixed precision: half-precision copies that stand in for float32 parameters while the network computes,
and gradients in float32.

FSDP2 does the same for shards, but its hooks around every layer take the host longer than a small model's kernels take
the GPU.
"""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor, nn

from verl_core.training.fsdp.gradients import GradientSums


class HalfCopies:
    """Between entering and leaving, the network's modules hold copies in `dtype` of those parameters that are stored in
    another type. The copies' memory is given back on leaving; a parameter used twice has one copy."""

    def __init__(self, network: nn.Module, dtype: torch.dtype, device: torch.device):
        self.masters: list[Tensor] = [p for p in network.parameters() if p.dtype != dtype]
        self.copies: list[Tensor] = [
            nn.Parameter(torch.empty(p.shape, dtype=dtype, device=device), p.requires_grad) for p in self.masters
        ]
        stand_in = {id(m): c for m, c in zip(self.masters, self.copies, strict=True)}
        self.gradients = GradientSums((p, stand_in.get(id(p), p)) for p in network.parameters())
        self.places = [
            (module, name, p, stand_in[id(p)])
            for module in network.modules()
            for name, p in module._parameters.items()
            if p is not None and id(p) in stand_in
        ]
        self._free()

    def __enter__(self) -> None:
        try:
            for copy in self.copies:
                copy.untyped_storage().resize_(copy.nbytes)
            if self.copies:
                with torch.no_grad():
                    torch._foreach_copy_(self.copies, self.masters)
        except BaseException:  # out of memory, most likely: nobody leaves what was not entered
            self._free()
            raise
        for module, name, _, copy in self.places:
            module._parameters[name] = copy  # type: ignore[assignment]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for module, name, master, _ in self.places:
            module._parameters[name] = master  # type: ignore[assignment]
        for copy in self.copies:  # after an error there may be some
            copy.grad = None
        self._free()
        try:
            if error is None:
                self.gradients.finish()
        finally:
            self.gradients.forget()

    def collect_gradients(self) -> None:
        """Takes the gradients of one micro-batch; on leaving, parameters have their sum."""
        self.gradients.add()

    def _free(self) -> None:
        for copy in self.copies:
            copy.untyped_storage().resize_(0)
