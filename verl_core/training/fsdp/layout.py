"""How the ranks of a role share its model and its rows, from the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn

from verl_core.config.errors import UserError
from verl_core.config.schema import ActorConfig, CriticConfig
from verl_core.models.ulysses import Split, check_heads
from verl_core.platforms import Platform
from verl_core.training.fsdp.division import Division, add_up_over_parts
from verl_core.training.fsdp.experts import divide_all_experts
from verl_core.training.fsdp.mesh import Meshes, device_meshes, sequence_split
from verl_core.training.fsdp.tensor import divide_layers

TENSOR, EXPERT = "fsdp_config.tensor_parallel_size", "fsdp_config.expert_parallel_size"


@dataclass(frozen=True)
class Layout:
    """`split`: this rank's part in its rows (None: it has whole ones); `division`: what is cut into parts."""

    meshes: Meshes
    split: Split | None = None
    division: Division | None = None

    def add_up_over_parts(self, network: nn.Module) -> None:
        """What a backward pass leaves to be added up before an optimizer step."""
        if self.division and self.meshes.beside and self.meshes.part:
            add_up_over_parts(network, self.meshes.beside, self.meshes.part)


def arrange(
    network: nn.Module,
    config: Any,
    settings: ActorConfig | CriticConfig,
    role: str,
    platform: Platform,
    group: dist.ProcessGroup | None,
) -> Layout | None:
    """Changes the layers' forwards for ranks that have parts of them; None for a process alone. `config`: of the
    transformers model. Raises UserError for sizes that do not divide, or do not go together."""
    fsdp, rows = settings.fsdp_config, settings.ulysses_sequence_parallel_size
    sizes = {TENSOR: fsdp.tensor_parallel_size, EXPERT: fsdp.expert_parallel_size}
    key, parts = max(sizes.items(), key=lambda item: item[1])
    if sum(size > 1 for size in (*sizes.values(), rows)) > 1 and (min(sizes.values()) > 1 or key == TENSOR):
        named = {**sizes, "ulysses_sequence_parallel_size": rows}
        both = " and ".join(f"{role}.{name}={size}" for name, size in named.items() if size > 1)
        raise UserError(f"{both} do not go together", "set all but one to 1")
    check_heads(config, f"{role}.ulysses_sequence_parallel_size", rows)
    split = sequence_split(group, role, rows)
    if parts == 1 and (not dist.is_initialized() or dist.get_world_size(group) == 1):
        return None
    meshes = device_meshes(platform, group, role, fsdp.fsdp_size, parts, key)
    if meshes.part is None:
        return Layout(meshes, split)
    ranks = Split(meshes.part.get_group(), gathers=True)
    if key == TENSOR:
        return Layout(meshes, ranks, divide_layers(network, config, ranks, f"{role}.{key}"))
    return Layout(meshes, split, divide_all_experts(network, ranks, f"{role}.{key}"))
