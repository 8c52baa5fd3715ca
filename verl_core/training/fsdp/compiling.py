"""torch.compile of decoder layers, one compilation shared by all layers of a shape."""

from __future__ import annotations

import torch
from torch import nn

from verl_core.models.packing import Packing
from verl_core.models.shared_prompt import SharedPacking
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


def of_any_layout(packing: Packing) -> None:
    """Compiled layers take the numbers of sequences and of shared keys as they come: a row is compiled for its length
    alone."""
    for offsets in (packing.cu_B1, packing.key_cu_B1):
        torch._dynamo.maybe_mark_dynamic(offsets, 0)
    if isinstance(packing, SharedPacking):
        torch._dynamo.maybe_mark_dynamic(packing.row_of_key_M, 0)
