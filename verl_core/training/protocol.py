"""The border of a training engine. One instance lives on each rank of its pool; every method is called on all ranks
with each rank's share of the data, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from verl_core.algorithms.loss import Loss, Need, Totals
from verl_core.batch import Batch


@dataclass(frozen=True)
class MicroBatching:
    """How a rank's share is cut: exactly one of the two is set. Both run packed."""

    sequences: int | None = None
    tokens: int | None = None


@dataclass
class EngineState:
    """Everything a checkpoint needs of an engine. Tensors may be DTensors (sharded) or plain (replicated)."""

    weights: dict[str, Tensor]  # Hugging Face parameter and buffer names, an adapter's as peft names them
    optimizer: dict[str, Tensor] = field(
        default_factory=dict
    )  # "<state key>/<parameter name>", e.g. exp_avg/model.norm.weight
    scalars: dict[str, Any] = field(default_factory=dict)  # JSON: schedule position, optimizer steps by parameter, ...
    adapter: dict[str, Any] | None = None  # peft's adapter_config.json, where `weights` are an adapter's alone


class TrainEngine(Protocol):
    """One role's model in training: its weights, optimizer and learning-rate schedule."""

    def forward(
        self,
        batch: Batch,
        want: frozenset[Need],
        temperature: float = 1.0,
        micro: MicroBatching | None = None,
        k: int = 0,
    ) -> dict[Need, Tensor]:
        """Per-token quantities without gradient, in the order of the batch, on the CPU; [N] float32 where `Need` says
        nothing else. `k`: how many of the likeliest tokens. `Need.FULL_KL` is from the snapshot "ref"."""
        ...

    def step(self, batch: Batch, loss: Loss, totals: Totals) -> dict[str, float]:
        """One optimizer step on this rank's share of a mini-batch (possibly empty): micro-batches, gradient
        accumulation, all-reduce, clipping, optimizer, schedule. Returns the loss's metrics joined over micro-batches
        and ranks, and `loss`, `grad_norm`, `lr`."""
        ...

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its Hugging Face name, gathered whole, one bucket at a time, an adapter folded in;
        unsharded engines yield the live tensors of all that no adapter changes."""
        ...

    def named_shards(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's pieces: DTensors carry their placement, plain tensors are whole."""
        ...

    def snapshot(self, name: str) -> None:
        """Remembers the present weights under `name`, in host memory. With an adapter, "ref" is the base without it."""
        ...

    def use(self, name: str) -> AbstractContextManager[None]:
        """Within the context the weights are those of `snapshot(name)`. Raises KeyError for an unknown name."""
        ...

    def drop(self, name: str) -> None:
        """Forgets the snapshot. Raises KeyError for an unknown name."""
        ...

    def state(self) -> EngineState:
        """The live tensors, not copies, in the placement they have."""
        ...

    def load_state(self, state: EngineState) -> None:
        """Takes tensors of any placement (they are redistributed to this engine's). Raises UserError naming the
        parameters when the names or shapes are not this model's."""
        ...

    def offload(self, to: Literal["cpu", "device"], what: frozenset[str] = frozenset({"params", "optimizer"})) -> None:
        """Moves parameters, optimizer state or both to host memory or back. `forward`, `step` and `named_weights` bring
        back what they need."""
        ...
