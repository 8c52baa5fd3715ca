"""The engine's weights by their Hugging Face names: checked, then shared with the giver or copied."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


class WeightTable:
    """Knows which names and shapes a model has, and keeps the latest tensor of each.

    A tensor that comes with the engine's dtype and device is kept as it is, so the engine sees the trainer's memory and
    an update costs nothing; any other is copied into memory of the engine's own, which later updates reuse.
    """

    def __init__(self, model_config: Any, device: torch.device, dtype: torch.dtype):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(copy.deepcopy(model_config), dtype=dtype)
        self.device = device
        self.dtype = dtype
        self.required = {name: p.shape for name, p in model.named_parameters()}
        every = {name: p.shape for name, p in model.named_parameters(remove_duplicate=False)}
        every.update({name: b.shape for name, b in model.state_dict().items()})
        self.optional = {name: shape for name, shape in every.items() if name not in self.required}
        self.tensors: dict[str, Tensor] = {}
        self._own: dict[str, Tensor] = {}

    @property
    def complete(self) -> bool:
        return bool(self.tensors)

    def take(self, stream: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Takes one full set of weights and returns the required ones. A second name of a tied parameter and persistent
        buffers may come and are ignored.

        Raises:
            KeyError: a name is not this model's, or one of its parameters did not come.
            ValueError: a tensor has the wrong shape.
        """
        self.tensors = {}  # what was copied so far would be overwritten: a failure leaves no weights, not a mixture
        fresh: dict[str, Tensor] = {}
        for name, tensor in stream:
            want = self.required.get(name, self.optional.get(name))
            if want is None:
                raise KeyError(f"weight {name!r} is not a parameter of this model")
            if tensor.shape != want:
                raise ValueError(f"weight {name!r} has shape {tuple(tensor.shape)}, the model's is {tuple(want)}")
            if name in self.required:
                fresh[name] = self._keep(name, tensor.detach())
        missing = [name for name in self.required if name not in fresh]
        if missing:
            raise KeyError(f"{len(missing)} of {len(self.required)} weights did not come, first {missing[0]!r}")
        self.tensors = fresh
        return fresh

    def _keep(self, name: str, tensor: Tensor) -> Tensor:
        if tensor.dtype == self.dtype and tensor.device == self.device:
            self._own.pop(name, None)
            return tensor
        if name not in self._own:
            self._own[name] = torch.empty(tensor.shape, dtype=self.dtype, device=self.device)
        return self._own[name].copy_(tensor, non_blocking=True)
