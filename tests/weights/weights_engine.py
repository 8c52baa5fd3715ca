"""An engine that only holds weights, for a process of its own, and a trainer that only has some."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from verl_core.rollout.child import ChildEngine
from verl_core.weights.buckets import as_bytes, dtype_name

HERE = Path(__file__).parent


class HoldingEngine:
    """Copies what it is given, or with `keeps` uses it where it lies. As soon as it reads it forgets what it had, as
    engines do.

    Args:
        fault: what goes wrong at the second tensor of version 2: "refuse" raises, "die" ends the process by SIGKILL,
            "sleep" hangs, "alter" holds other bits than were given.
    """

    def __init__(self, keeps: bool, fault: str | None = None):
        self.keeps, self.fault = keeps, fault
        self.held: dict[str, Tensor] = {}

    def update_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.held = {}
        taken: dict[str, Tensor] = {}
        for i, (name, tensor) in enumerate(stream):
            if i == 1 and version == 2 and self.fault:
                if self.fault == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.fault == "refuse":
                    raise KeyError(f"weight {name!r} is not a parameter of this model")
                if self.fault == "sleep":
                    time.sleep(60)
                if self.fault == "alter":
                    tensor = as_bytes(tensor).bitwise_xor(1).view(tensor.dtype).view(tensor.shape)
            taken[name] = tensor if self.keeps else tensor.clone()
        self.held = taken

    def set_fault(self, fault: str | None) -> None:
        self.fault = fault

    def held_weights(self) -> Iterable[tuple[str, Tensor]]:
        return self.held.items()

    def digests(self) -> dict[str, Any]:
        return digests(self.held.items())


def digests(stream: Iterable[tuple[str, Tensor]]) -> dict[str, list[Any]]:
    """Type, shape and SHA-256 of the bytes of every tensor: what equality to the last bit means here."""
    return {
        name: [dtype_name(t.dtype), list(t.shape), hashlib.sha256(as_bytes(t).numpy().tobytes()).hexdigest()]
        for name, t in stream
    }


def make(keeps: bool) -> Any:
    return HoldingEngine(keeps)


@contextmanager
def child(keeps: bool = False) -> Iterator[ChildEngine]:
    """The engine with an inbox, in a process of its own; `child.call` is what senders tell."""
    options = {"factory": "weights_engine:make", "options": {"keeps": keeps}, "device": "cpu"}
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    engine = ChildEngine("verl_core.weights.child:make", {**options, "keeps": keeps}, env=environment)
    try:
        yield engine
    finally:
        engine.close()


class Weights:
    """The two methods of a TrainEngine that a sender calls, over a dictionary."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.tensors = tensors

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.tensors.items()

    named_shards = named_weights
