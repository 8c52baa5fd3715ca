"""The engine's end of `delta`: a copy of the weights in host memory, changed on the engine's device and handed to the
engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from verl_core.config.errors import RunError
from verl_core.weights.buckets import Piece, dtype_of, unpack
from verl_core.weights.delta.codec import apply, bits
from verl_core.weights.delta.placement import Box
from verl_core.weights.hashing import hashes_of, tensor_hash
from verl_core.weights.inbox import Room
from verl_core.weights.link import Incoming


class DeltaReceiver:
    """One link for each rank of the trainer. An engine that uses tensors where they lie uses this copy."""

    def __init__(self, device: torch.device, links: list[dict[str, Any]]):
        self._links = [Incoming(device, **link) for link in links]
        self._device = device
        self._mirror: dict[str, Tensor] = {}
        self._version: int | None = None
        self.hashes: dict[str, int] = {}

    def stream(self, message: dict[str, Any], room: Room | None) -> Iterator[tuple[str, Tensor]]:
        """With `room` the engine generates from the copy, so it is changed only once the engine reads the stream, which
        it does between two tokens. Without, the engine is not disturbed until everything has arrived."""
        if room is not None:
            return self._applied(message, room)
        self._apply(message, None)
        return iter(self._mirror.items())

    def _applied(self, message: dict[str, Any], room: Room) -> Iterator[tuple[str, Tensor]]:
        self._apply(message, room)
        yield from self._mirror.items()

    def _apply(self, message: dict[str, Any], room: Room | None) -> None:
        if not message["whole"] and (self._version is None or self._version != message["base"]):
            raise RunError(f"changes against version {message['base']} came to a copy of version {self._version}")
        self._version, arrived = None, Counter[str]()
        found, sent = list[Tensor](), list[tuple[str, int]]()
        try:
            for link in self._links:
                for piece, payload in unpack(link.buckets()):
                    found.append(self._change(piece, payload, room))
                    sent.append((piece.name, piece.note["hash"]))
                    arrived[piece.name] += torch.Size(piece.note["box"][1]).numel()
        except Exception:
            self.close()  # the ranks that still send learn of it
            raise
        for (name, wanted), has in zip(sent, torch.stack(found).tolist() if found else [], strict=True):
            if has != wanted:
                raise RunError(f"the copy of {name} is not the trainer's after its changes were applied")
        for name, tensor in self._mirror.items():
            if arrived[name] != tensor.numel():
                raise RunError(f"{arrived[name]} of {tensor.numel()} elements of {name} arrived")
        self._version = message["version"]
        held = ((name, tensor.to(self._device)) for name, tensor in self._mirror.items())
        self.hashes = hashes_of(held) if message["verify"] else {}

    def _change(self, piece: Piece, payload: Tensor, room: Room | None) -> Tensor:
        """Returns the hash of the changed part, on the device, where changing and hashing take no time to speak of."""
        note = piece.note
        if room is not None:
            whole = Piece(piece.name, note["dtype"], tuple(note["shape"]), 0, 0, 0)
            self._mirror[piece.name] = room(whole)
        elif piece.name not in self._mirror:
            dtype = dtype_of(note["dtype"])
            pinned = self._device.type == "cuda"
            self._mirror[piece.name] = torch.empty(note["shape"], dtype=dtype, pin_memory=pinned)
        part = Box.noted(note["box"]).of(self._mirror[piece.name])
        here = part.to(self._device, non_blocking=True)  # the part itself where it lies there
        apply(bits(here), payload, note)
        if here is not part:
            part.copy_(here, non_blocking=True)
        return tensor_hash(here)

    def close(self) -> None:
        for link in self._links:
            link.close()
