"""Weights to a rollout engine in the trainer's own process: it is handed the tensors themselves, one at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from verl_core.rollout.hf import HfEngine
from verl_core.training.protocol import TrainEngine
from verl_core.weights.buckets import cast
from verl_core.weights.hashing import compare, hashes_of, tensor_hash


def push(engine: TrainEngine, rollout: HfEngine, version: int, verify: bool = False) -> None:
    """Gives `rollout` the present weights as `version`. An unsharded trainer gives its live tensors, which the engine
    may share rather than copy; a sharded one gathers each. Called on all ranks of the trainer.

    `verify`: raises RunError that names the first weight which the engine holds otherwise.
    """
    sent: dict[str, Tensor] = {}
    stream = engine.named_weights()
    rollout.update_weights(_hashed(stream, rollout.dtype, sent) if verify else stream, version)
    if verify:
        hashes = {name: int(value) for name, value in sent.items()}
        compare(hashes, hashes_of(item for item in rollout.held_weights() if item[0] in hashes))


def _hashed(
    stream: Iterator[tuple[str, Tensor]], dtype: torch.dtype, found: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The stream as it is; `found` gets each tensor's hash in the engine's dtype."""
    for name, tensor in stream:
        ((_, own),) = cast([(name, tensor)], dtype)
        found[name] = tensor_hash(own)
        yield name, tensor
