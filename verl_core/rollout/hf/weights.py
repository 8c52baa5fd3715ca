"""The engine's weights by their Hugging Face names: checked, then shared with the giver or copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from verl_core.rollout.weight_names import WeightNames


class WeightTable:
    """Knows which names and shapes a model has, and keeps the latest tensor of each.

    A tensor that comes with the engine's dtype and device is kept as it is, so the engine sees the trainer's memory and
    an update costs nothing; any other is copied into memory of the engine's own, which later updates reuse.
    """

    def __init__(self, model_config: Any, device: torch.device, dtype: torch.dtype):
        self._names = WeightNames(model_config, dtype)
        self.device = device
        self.dtype = dtype
        self.tensors: dict[str, Tensor] = {}
        self._own: dict[str, Tensor] = {}

    @property
    def complete(self) -> bool:
        return bool(self.tensors)

    @contextmanager
    def taken(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
        """Takes one full set of weights and gives the required ones; they count when the block, which puts them to use,
        has ended well. A second name of a tied parameter and persistent buffers may come and are ignored.

        Raises:
            KeyError: a name is not this model's, or one of its parameters did not come.
            ValueError: a tensor has the wrong shape.
        """
        self.tensors = {}  # what was copied so far would be overwritten: a failure leaves no weights, not a mixture
        fresh = {name: self._keep(name, tensor) for name, tensor in self._names.checked(stream)}
        yield fresh
        self.tensors = fresh

    def _keep(self, name: str, tensor: Tensor) -> Tensor:
        if tensor.dtype == self.dtype and tensor.device == self.device:
            self._own.pop(name, None)
            return tensor
        if name not in self._own:
            self._own[name] = torch.empty(tensor.shape, dtype=self.dtype, device=self.device)
        return self._own[name].copy_(tensor, non_blocking=True)
