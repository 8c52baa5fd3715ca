"""The receiver of weights, beside the engine in its process."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Protocol

import torch
from torch import Tensor

from verl_core.config.errors import RlxError, RunError
from verl_core.rollout.protocol import RolloutEngine
from verl_core.weights.buckets import Piece, dtype_of
from verl_core.weights.hashing import Hasher, compare, hashes_of

Room = Callable[[Piece], Tensor]

_RECEIVERS = {
    "ipc": "verl_core.weights.ipc:IpcReceiver",
    "broadcast": "verl_core.weights.broadcast:BroadcastReceiver",
    "delta": "verl_core.weights.delta.receiver:DeltaReceiver",
    "disk": "verl_core.weights.disk:DiskReceiver",
}


class Receiver(Protocol):
    """The child's side of one transport."""

    hashes: dict[str, int]
    """By name, once the stream has ended; empty when the sender does not verify."""

    def stream(self, message: dict[str, Any], room: Room | None) -> Iterator[tuple[str, Tensor]]:
        """What arrives. Each tensor is valid until the next is asked for, with `room` until the next transfer."""
        ...

    def close(self) -> None: ...


class Inbox:
    """Takes weights from a transport and gives them to the engine.

    Args:
        engine: the one that samples.
        device: where the engine's weights lie.
        keeps: the engine uses the tensors that it is given where they lie (hf) instead of copying them.
        held: the engine's present weights by Hugging Face name, for verified transfers. None: the engine keeps them in
            a form of its own (vLLM), and what is verified is each tensor at the moment that the engine takes it.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        *,
        device: torch.device | str,
        keeps: bool = False,
        held: Callable[[], Iterable[tuple[str, Tensor]]] | None = None,
    ):
        self.version: int | None = None
        """Of the weights that the engine holds; None: it has none, or no version whole."""
        self._engine, self._device, self._held = engine, torch.device(device), held
        self._room: Room | None = self._own if keeps else None
        self._memory: dict[str, Tensor] = {}
        self._receiver: Receiver | None = None
        self._begun = False  # whether the transfer under way has changed what the engine holds

    def weights_open(self, type: str, **options: Any) -> dict[str, Any]:
        """Makes the receiver of a transport, and ends the one before it."""
        if self._receiver is not None:
            self._receiver.close()
        module, name = _RECEIVERS[type].split(":")
        self._receiver = getattr(importlib.import_module(module), name)(self._device, **options)
        return self.weights_version()

    def weights_version(self) -> dict[str, Any]:
        return {"version": self.version}

    def weights_opened(self) -> dict[str, Any]:
        """Whether a transport is there. An engine that was started again has none."""
        return {"open": self._receiver is not None}

    def weights_take(self, version: int, verify: bool = False, **message: Any) -> dict[str, Any]:
        """Takes one version. Raises RunError that says which version the engine holds afterwards."""
        if self._receiver is None:
            raise RunError("weights came before a transport was opened")
        before, self._begun = self.version, False
        taken = Hasher() if verify and self._held is None else None
        try:
            message = {"version": version, "held": before, "verify": verify, **message}
            stream = self._receiver.stream(message, self._room)
            # An engine forgets what it had as soon as it reads. One that copies is not disturbed before there is a
            # tensor; one that keeps them where they lie must stand still before the first is overwritten.
            first = [] if self._room is not None else list(islice(stream, 1))
            whole = self._read(chain(first, stream))
            self._engine.update_weights(taken.watch(whole) if taken else whole, version)
            if verify:
                compare(sent := self._receiver.hashes, taken.hashes() if taken else self._hashes_of(sent))
        except Exception as error:
            holds = "no version whole: it needs all weights" if self._begun else f"version {before}"
            hint = error.hint if isinstance(error, RlxError) else None
            text = error.message if isinstance(error, RlxError) else f"{type(error).__name__}: {error}"
            raise RunError(
                f"weights of version {version} did not arrive whole: {text}; the engine holds {holds}", hint
            ) from error
        self.version = version
        return self.weights_version()

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()

    def _read(self, stream: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        self._begun, self.version = True, None
        yield from stream

    def _hashes_of(self, sent: dict[str, int]) -> dict[str, int]:
        """Of what the engine holds by the names that were sent."""
        assert self._held is not None
        return hashes_of((name, tensor) for name, tensor in self._held() if name in sent)

    def _own(self, piece: Piece) -> Tensor:
        """The engine's memory for this tensor, the same one at every transfer."""
        here = self._memory.get(piece.name)
        if here is None or (here.shape, here.dtype) != (piece.shape, dtype_of(piece.dtype)):
            here = torch.empty(piece.shape, dtype=dtype_of(piece.dtype), device=self._device)
            self._memory[piece.name] = here
        return here
