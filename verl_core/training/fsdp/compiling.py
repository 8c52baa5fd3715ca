"""torch.compile of decoder layers, one compilation shared by all layers of a shape."""

from __future__ import annotations

import torch
from torch import nn

from verl_core.training.fsdp.shard import decoder_layers

SHAPES = 32  # compilations a layer's code may have: row lengths x training or not x dtypes


def compile_layers(network: nn.Module, dynamic: bool) -> None:
    """dynamic: one compilation for every length of the packed row, some 3 % slower on a GPU; else one a length, for
    engines that keep lengths few."""
    torch._dynamo.config.recompile_limit = max(SHAPES, torch._dynamo.config.recompile_limit)
    # joint projections hand values from one call to the next; without this a recomputed layer falls apart into pieces
    torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    for layer in decoder_layers(network):
        layer.compile(dynamic=dynamic)
