"""A trainer whose weights are its adapter's alone, for an engine that has the base already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from verl_core.training.fsdp.shard import full
from verl_core.training.protocol import TrainEngine


class AdapterOnly:
    """Any other attribute is the trainer's."""

    def __init__(self, trainer: TrainEngine):
        self._trainer = trainer

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """A and B of each adapted layer, gathered whole, under peft's names. Called on all ranks of the trainer."""
        for name, shard in self._trainer.named_shards():
            yield name, full(shard)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)
