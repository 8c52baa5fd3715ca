"""Queries, keys and values by one matrix product. With few key heads the products of keys and values are too narrow to
fill a GPU, forward and backward, and three gradients of one input are written out and added up; joining the weights
anew in every call copies less than that (3B: 10 MB a layer)."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verl_core.models.parts import own


def join_projections(network: nn.Module) -> None:
    """Replaces the forwards of each attention's `q_proj`, `k_proj`, `v_proj`, where they are plain linear layers and
    keys are at most half as wide as queries. Parameters stay where they are."""
    for module in network.modules():
        layers = [getattr(module, f"{x}_proj", None) for x in "qkv"]
        if _pays(layers):
            q, k, v = cast(list[nn.Linear], layers)
            joint = _Joint(q, k, v)
            q.forward, k.forward, v.forward = joint.query, joint.key, joint.value  # type: ignore[method-assign,assignment]


def _pays(layers: list[nn.Module | None]) -> bool:
    if not all(type(layer) is nn.Linear for layer in layers):
        return False
    linear = cast(list[nn.Linear], layers)
    q, k, _ = linear
    inputs, biased = {layer.in_features for layer in linear}, {layer.bias is None for layer in linear}
    return len(inputs) == len(biased) == 1 and 2 * k.out_features <= q.out_features


class _Joint:
    """The call for queries computes all three; keys and values wait for theirs, in whatever order they come."""

    def __init__(self, q: nn.Linear, k: nn.Linear, v: nn.Linear):
        self.layers = (q, k, v)
        self.waiting: dict[str, Tensor] = {}

    def query(self, x: Tensor) -> Tensor:
        weight = torch.cat([own(layer.weight) for layer in self.layers])
        bias = None if self.layers[0].bias is None else torch.cat([own(layer.bias) for layer in self.layers])
        query, key, value = F.linear(x, weight, bias).split([layer.out_features for layer in self.layers], -1)
        self.waiting = {"key": key, "value": value}
        return query

    def key(self, x: Tensor) -> Tensor:
        return self.waiting.pop("key")

    def value(self, x: Tensor) -> Tensor:
        return self.waiting.pop("value")
