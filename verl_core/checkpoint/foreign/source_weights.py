"""The tensors of a foreign checkpoint, as a merge takes them."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from transformers import PreTrainedModel

from verl_core.checkpoint.foreign.source import ForeignSource


class SourceWeights:
    """A source's tensors, with the vocabulary cut to the model's where the trainer has padded it: rows of the embedding
    and the head beyond the config's vocab_size were never looked up."""

    def __init__(self, source: ForeignSource, model: PreTrainedModel):
        self._source = source
        self._shapes = {name: info.shape for name, info in source.tensors.items()}
        self.rows_cut = 0
        for name, shape in _vocabularies(model).items():
            stored = self._shapes.get(name)
            if stored and len(stored) == len(shape) and stored[1:] == shape[1:] and stored[0] > shape[0]:
                self._shapes[name] = shape
                self.rows_cut = stored[0] - shape[0]

    @property
    def names(self) -> Collection[str]:
        return self._shapes.keys()

    def shape(self, name: str) -> torch.Size:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        return self._source.tensors[name].dtype

    def complete(self, name: str) -> bool:
        return True  # what is not is among the source's faults

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self._source.rows(name, start, stop)


def _vocabularies(model: PreTrainedModel) -> dict[str, torch.Size]:
    """Name -> shape of the weights that have a row for each token."""
    layers = [layer for layer in (model.get_input_embeddings(), model.get_output_embeddings()) if layer is not None]
    weights = {id(layer.weight) for layer in layers}
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.shape for name, parameter in named if id(parameter) in weights}
