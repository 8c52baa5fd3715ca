"""One rank's mixed precision: half-precision copies that stand in for float32 parameters while the network computes.

FSDP2 does the same for shards, but its hooks around every layer take the host longer than a small model's kernels take
the GPU.
"""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor, nn


class HalfCopies:
    """Between entering and leaving, the network's modules hold copies in `dtype` of those parameters that are stored in
    another type. The copies' memory is given back on leaving; a parameter used twice has one copy."""

    def __init__(self, network: nn.Module, dtype: torch.dtype, device: torch.device):
        self.masters: list[Tensor] = [p for p in network.parameters() if p.dtype != dtype]
        self.copies: list[Tensor] = [
            nn.Parameter(torch.empty(p.shape, dtype=dtype, device=device), p.requires_grad) for p in self.masters
        ]
        both = {id(m): (m, c) for m, c in zip(self.masters, self.copies, strict=True)}
        self.places = [
            (module, name, *both[id(p)])
            for module in network.modules()
            for name, p in module._parameters.items()
            if p is not None and id(p) in both
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

    def collect_gradients(self) -> None:
        """Adds the copies' gradients, of one micro-batch, to the parameters' own."""
        for first in (False, True):
            pairs = [
                (master, copy)
                for master, copy in zip(self.masters, self.copies, strict=True)
                if copy.grad is not None and (master.grad is None) == first
            ]
            for master, _ in pairs if first else ():
                master.grad = torch.empty_like(master)
            if pairs:
                _add([m.grad for m, _ in pairs], [c.grad for _, c in pairs], first)  # type: ignore[misc]
            for _, copy in pairs:
                copy.grad = None

    def _free(self) -> None:
        for copy in self.copies:
            copy.untyped_storage().resize_(0)


def _add(sums: list[Tensor], parts: list[Tensor], first: bool) -> None:
    if all(s.is_cuda and s.dtype == torch.float32 and s.is_contiguous() for s in sums):
        from verl_core.training.fsdp import accumulate_triton

        plain = torch.contiguous_format
        parts = [part if accumulate_triton.takes(part) else part.clone(memory_format=plain) for part in parts]
        accumulate_triton.add(sums, parts, first)
    elif first:
        torch._foreach_copy_(sums, parts)
    else:
        torch._foreach_add_(sums, parts)
