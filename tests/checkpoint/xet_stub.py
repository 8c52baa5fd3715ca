"""The part of Xet's storage that a client uploads to: xorbs, which are sequences of chunks, and shards, which say what
files are made of them. Chunks must be plain: clients are started with `PLAIN`.
https://huggingface.co/docs/xet/xorb, https://huggingface.co/docs/xet/shard
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PLAIN = {"HF_XET_XORB_COMPRESSION_POLICY": "none"}
_BLOCK = 48  # bytes: a shard's header, and everything in its list of files
_VERIFIED, _WITH_SHA256 = 1 << 31, 1 << 30  # of a file in a shard
_END = b"\xff" * 32


@dataclass
class Cas:
    """`keep(sha256, content)` is told of every file, and says whether it takes it."""

    keep: Callable[[str, bytes], bool]
    xorbs: dict[str, list[bytes]] = field(default_factory=dict)

    def take(self, path: str, content: bytes) -> dict[str, object] | None:
        """The answer to a POST; None for a path that this storage has not. Raises ValueError for what it refuses."""
        if path.startswith("/v1/xorbs/default/"):
            self.xorbs[path.rpartition("/")[2]] = list(_chunks(content))
            return {"was_inserted": True}
        if path == "/v1/shards":
            for sha256, file in self._files(content):
                if not self.keep(sha256, file):
                    raise ValueError("the content has another SHA-256")
            return {"result": 1}
        return None

    def _files(self, shard: bytes) -> Iterator[tuple[str, bytes]]:
        at = _BLOCK
        while not shard.startswith(_END, at):
            flags, count = struct.unpack_from("<II", shard, at + 32)
            if not flags & _WITH_SHA256:
                raise ValueError("a file without its SHA-256")
            parts = [self._segment(shard[at + _BLOCK * i : at + _BLOCK * (i + 1)]) for i in range(1, count + 1)]
            at += _BLOCK * (1 + count * (2 if flags & _VERIFIED else 1))
            yield _hex(shard[at : at + 32]), b"".join(parts)
            at += _BLOCK

    def _segment(self, entry: bytes) -> bytes:
        size, first, last = struct.unpack_from("<III", entry, 36)
        content = b"".join(self.xorbs[_hex(entry[:32])][first:last])
        if len(content) != size:
            raise ValueError(f"a segment of {len(content)} bytes, {size} were announced")
        return content


def _chunks(xorb: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(xorb):
        size, scheme = int.from_bytes(xorb[at + 1 : at + 4], "little"), xorb[at + 4]
        if scheme != 0:
            raise ValueError("compressed chunks are not read here")
        yield xorb[at + 8 : at + 8 + size]
        at += 8 + size


def _hex(raw: bytes) -> str:
    """How Xet writes 32 bytes: four little-endian numbers."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", raw))
