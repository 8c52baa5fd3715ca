"""The layout of published checkpoints. transformers 5 holds some weights otherwise in memory than the hub has them (the
experts of a layer stacked into one tensor); other programs read the published names, so a merge writes those."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion


def published(model: PreTrainedModel, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The published tensors that hold the values of one of the model's; itself where the layouts agree."""
    return revert_weight_conversion(model, {name: tensor})


def joined(model: PreTrainedModel, name: str, shape: torch.Size, part: Callable[[str], Tensor]) -> Tensor:
    """One of the model's tensors out of the published ones, which `part` gives: the inverse of `published`."""
    index = torch.arange(shape.numel(), dtype=torch.int32 if shape.numel() < 1 << 31 else torch.int64)
    values: Tensor | None = None
    for stored, places in published(model, name, index.reshape(shape)).items():
        given = part(stored)
        if values is None:
            values = torch.empty(shape.numel(), dtype=given.dtype)
        values[places.reshape(-1)] = given.reshape(-1)
    assert values is not None, f"{name} has no published form"
    return values.reshape(shape)


def layout(model: PreTrainedModel, shapes: Mapping[str, torch.Size]) -> dict[str, dict[str, torch.Size]]:
    """For each of the model's tensors the names and shapes of the published ones made from it.

    Where a published tensor joins several of the model's, which no stream of single tensors can write, all stay under
    the model's own names: transformers loads both.
    """
    own = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    whole = {name: tensor.shape for name, tensor in revert_weight_conversion(model, dict(own)).items()}
    parts = {
        name: {name: shape}
        if whole.get(name) == shape
        else {part: tensor.shape for part, tensor in published(model, name, own[name]).items()}
        for name, shape in shapes.items()
    }
    if {name: shape for part in parts.values() for name, shape in part.items()} != whole:
        return {name: {name: shape} for name, shape in shapes.items()}
    return parts
