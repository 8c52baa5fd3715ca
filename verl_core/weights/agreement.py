"""What the ranks of a trainer tell each other about a transfer."""

from __future__ import annotations

from typing import Any

from torch import distributed as dist


def of_all_ranks(value: Any) -> list[Any]:
    """Every rank's value, by rank, over torch's default group. Called on all ranks."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
