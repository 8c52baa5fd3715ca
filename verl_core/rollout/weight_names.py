"""Which weights a model has, by their Hugging Face names and shapes, and the check that all of them come."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


class WeightNames:
    """`required` holds every parameter once; `optional` the second names of tied ones and persistent buffers."""

    def __init__(self, model_config: Any, dtype: torch.dtype):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(copy.deepcopy(model_config), dtype=dtype)
        self.required = {name: p.shape for name, p in model.named_parameters()}
        every = {name: p.shape for name, p in model.named_parameters(remove_duplicate=False)}
        every.update({name: b.shape for name, b in model.state_dict().items()})
        self.optional = {name: shape for name, shape in every.items() if name not in self.required}

    def checked(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The required weights of a stream, each as it comes; optional ones are dropped.

        Raises:
            KeyError: a name is not this model's, or, at the end of the stream, one of its parameters did not come.
            ValueError: a tensor has the wrong shape.
        """
        seen = set[str]()
        for name, tensor in stream:
            want = self.required.get(name, self.optional.get(name))
            if want is None:
                raise KeyError(f"weight {name!r} is not a parameter of this model")
            if tensor.shape != want:
                raise ValueError(f"weight {name!r} has shape {tuple(tensor.shape)}, the model's is {tuple(want)}")
            if name in self.required:
                seen.add(name)
                yield name, tensor.detach()
        missing = [name for name in self.required if name not in seen]
        if missing:
            raise KeyError(f"{len(missing)} of {len(self.required)} weights did not come, first {missing[0]!r}")
