"""Size and checksum of a checkpoint's files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

DIGEST = 20
"""Bytes of a blake2b-160."""


@dataclass(frozen=True)
class Piece:
    """One file of a checkpoint: size in bytes and blake2b-160 checksum (hex)."""

    bytes: int
    blake2b: str


class Sink(Protocol):
    """What takes the bytes of a file."""

    def write(self, data: Any, /) -> int: ...


class Measured:
    """Passes bytes on to `sink` and measures them."""

    def __init__(self, sink: Sink):
        self._sink, self._digest, self._bytes = sink, hashlib.blake2b(digest_size=DIGEST), 0

    def write(self, data: Any, /) -> int:
        self._digest.update(data)
        self._bytes += memoryview(data).nbytes
        return self._sink.write(data)

    def piece(self) -> Piece:
        """Of all that was written."""
        return Piece(self._bytes, self._digest.hexdigest())
