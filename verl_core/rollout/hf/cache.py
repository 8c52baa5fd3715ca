"""Keys and values of the running sequences, and of prompts that are still wanted.

A *plane* is one tensor of what attention remembers, [rows, positions, heads, head_dim]; a decoder has one or more a
layer. A *slot* is a row of the planes; row i of a decode step lives in slot i.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from verl_core.rollout.transfer import upload

_ALIGN = 8  # attention kernels on GPUs want the length of a mask's rows in multiples of this


def aligned(length: int) -> int:
    """The next multiple of 8 that holds `length` positions."""
    return -(-length // _ALIGN) * _ALIGN


@dataclass
class Prefix:
    """Prompts that went through the model: their planes [P, T, heads, head_dim] (positions past a prompt's length hold
    finite leftovers), and the logits of the token that follows each, [P, V]."""

    planes: list[Tensor]
    logits_PV: Tensor

    def pick(self, prompt: int) -> Prefix:
        """A copy of one prompt, free of the others' memory."""
        one = slice(prompt, prompt + 1)
        return Prefix([plane[one].clone() for plane in self.planes], self.logits_PV[one].clone())


class SlotCache:
    """Preallocated planes for `slots` rows of up to `positions` tokens (a multiple of 8, see `aligned`), made when the
    first prefix shows their shapes. Unused entries are finite (zero at first), because attention multiplies what it
    masks by zero."""

    def __init__(self, slots: int, positions: int):
        self.slots = slots
        self.positions = positions
        self.planes: list[Tensor] = []

    @property
    def nbytes(self) -> int:
        """Of all planes; 0 before the first prefix."""
        return sum(plane.nbytes for plane in self.planes)

    def write_prefix(self, prefix: Prefix, prompt_B: Sequence[int], slot_B: Sequence[int]) -> None:
        """Copies prompt prompt_B[i] of the prefix into slot slot_B[i]."""
        if not self.planes:
            self.planes = [self._plane_like(plane) for plane in prefix.planes]
        device = self.planes[0].device
        prompt_index = upload(prompt_B, device)
        slot_index = upload(slot_B, device)
        for plane, source in zip(self.planes, prefix.planes, strict=True):
            plane[slot_index, : source.shape[1]] = source[prompt_index]

    def _plane_like(self, source: Tensor) -> Tensor:
        """Zeros [slots, positions, heads, head_dim] whose axes lie in memory in the order of the source's, so that the
        decoder chooses the layout its attention reads best."""
        size = {1: self.positions, 2: source.shape[2], 3: source.shape[3]}
        # In a prompt of one token the strides of two axes are equal; positions then go inside.
        order = sorted(size, key=lambda axis: (-source.stride()[axis], axis == 1))
        stored = source.new_zeros(self.slots, *(size[axis] for axis in order))
        return stored.permute(0, *(1 + order.index(axis) for axis in (1, 2, 3)))

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copies the first `length` positions of slots to other slots (no slot is both)."""
        device = self.planes[0].device
        source_index = upload(sources, device)
        target_index = upload(targets, device)
        for plane in self.planes:
            plane[target_index, :length] = plane[source_index, :length]

    def clear(self, slot: int) -> None:
        """Zeroes a slot in which NaN was computed."""
        for plane in self.planes:
            plane[slot].zero_()


class PrefixStore:
    """Prompts kept while requests for them wait in the queue: the G samples of a prompt share one pass through the
    model even when they do not run at the same time. Holds the `capacity` latest."""

    def __init__(self, capacity: int = 8):
        self.capacity = capacity
        self._entries: OrderedDict[tuple[int, ...], Prefix] = OrderedDict()

    def get(self, ids: tuple[int, ...]) -> Prefix | None:
        return self._entries.get(ids)

    def put(self, ids: tuple[int, ...], prefix: Prefix) -> None:
        self._entries[ids] = prefix
        if len(self._entries) > self.capacity:
            self._entries.popitem(last=False)

    def drop(self, ids: tuple[int, ...]) -> None:
        self._entries.pop(ids, None)
