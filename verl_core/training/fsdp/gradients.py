"""Gradients of a mini-batch's micro-batches, added up on one rank in float32, whatever the network computes in and
parameters are stored in. (FSDP2 does so until it reduces them.)"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class GradientSums:
    """`add` takes the gradients that a backward pass has left, `finish` gives each parameter the sum in its dtype."""

    def __init__(self, parameters: Iterable[tuple[Tensor, Tensor]]):
        """Each stored parameter, and what stands in for it while the network computes: another tensor, or itself."""
        pairs = list(parameters)
        self.wide = [(p, computing) for p, computing in pairs if p.dtype == torch.float32 and p is not computing]
        self.narrow = [(p, computing) for p, computing in pairs if p.dtype != torch.float32]
        self._sums: dict[int, Tensor] = {}  # of the narrow ones, by their place; the first as it was made

    def add(self) -> None:
        """A float32 parameter's own gradient is the sum; that of another is apart, since torch holds no gradient of
        another dtype. One micro-batch's gradient alone is not copied."""
        for first in (False, True):
            self._add_wide(first)
        made = [(index, c) for index, (_, c) in enumerate(self.narrow) if c.grad is not None]
        again = [(index, c.grad) for index, c in made if index in self._sums]
        for index, _ in again:
            self._sums[index] = self._sums[index].float()
        if again:
            _add([self._sums[index] for index, _ in again], [grad for _, grad in again], first=False)  # type: ignore[misc]
        for index, computing in made:
            if index not in self._sums:
                self._sums[index] = computing.grad  # type: ignore[assignment]
            computing.grad = None

    def _add_wide(self, first: bool) -> None:
        pairs = [(p, c) for p, c in self.wide if c.grad is not None and (p.grad is None) == first]
        for p, _ in pairs if first else ():
            p.grad = torch.empty_like(p)
        if pairs:
            _add([p.grad for p, _ in pairs], [c.grad for _, c in pairs], first)  # type: ignore[misc]
        for _, computing in pairs:
            computing.grad = None

    def finish(self) -> None:
        """One after the other, so that no two whole gradients stand side by side."""
        for index in list(self._sums):
            p, _ = self.narrow[index]
            p.grad = self._sums.pop(index).to(p.dtype)

    def forget(self) -> None:
        """After an error."""
        self._sums.clear()


def _add(sums: list[Tensor], parts: list[Tensor], first: bool) -> None:
    if all(s.is_cuda and s.dtype == torch.float32 and s.is_contiguous() for s in sums) and _half(parts):
        from verl_core.training.fsdp import accumulate_triton

        plain = torch.contiguous_format
        parts = [part if accumulate_triton.takes(part) else part.clone(memory_format=plain) for part in parts]
        accumulate_triton.add(sums, parts, first)
    elif first:
        torch._foreach_copy_(sums, parts)
    else:
        torch._foreach_add_(sums, parts)


def _half(parts: list[Tensor]) -> bool:
    return {part.dtype for part in parts} in ({torch.bfloat16}, {torch.float16})
