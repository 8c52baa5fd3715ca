"""A 64-bit hash of a tensor's bytes, computed where the tensor lies: the same on every device and for every chunking.

Each 8-byte word is mixed with its position and the mixed words are added up modulo 2**64, so that work splits freely
and no bit pattern (NaN, negative zero) is special. It guards against faults, not against an adversary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from verl_core.config.errors import RunError
from verl_core.weights.buckets import as_bytes

_WORDS = {"cpu": 1 << 16, "cuda": 1 << 23}  # at a time: what the caches hold; 64 MiB on a GPU


def _signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


# Odd constants of the splitmix64 generator.
_STEP, _MIX_A, _MIX_B = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_LOW = {30: (1 << 34) - 1, 27: (1 << 37) - 1}  # masks that make torch's arithmetic shift a logical one


def tensor_hash(tensor: Tensor) -> Tensor:
    """The hash as a 0-d int64 on the tensor's device (no wait for a GPU)."""
    raw = as_bytes(tensor)
    whole = raw.numel() // 8
    body = raw[: whole * 8]
    if raw.storage_offset() % 8:
        body = body.clone()
    words = body.view(torch.int64)
    tail = raw.new_zeros(8)
    tail[: raw.numel() - whole * 8] = raw[whole * 8 :]
    chunk = min(_WORDS.get(raw.device.type, 1 << 16), max(whole, 1))
    ramp = torch.arange(chunk, device=raw.device, dtype=torch.int64) * _STEP
    total = _mixed(tail.view(torch.int64), ramp[:1], whole) + _signed(raw.numel() * _MIX_A)
    for start in range(0, whole, chunk):
        total += _mixed(words[start : start + chunk], ramp, start)
    return total


def _mixed(words: Tensor, ramp: Tensor, start: int) -> Tensor:
    """Sum of the mixed words; the first stands at position `start`."""
    x = words + ramp[: len(words)]
    x += _signed((start + 1) * _STEP)
    for shift, factor in ((30, _MIX_A), (27, _MIX_B)):
        x ^= (x >> shift) & _LOW[shift]
        x *= factor
    return x.sum()


class Hasher:
    """Hashes what passes: `for name, tensor in hasher.watch(stream)`, then `hasher.hashes()`."""

    def __init__(self) -> None:
        self._found: dict[str, Tensor] = {}

    def watch(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in stream:
            self._found[name] = tensor_hash(tensor)
            yield name, tensor

    def hashes(self) -> dict[str, int]:
        """By name, of everything so far; waits for the device once."""
        if not self._found:
            return {}
        return dict(zip(self._found, torch.stack(list(self._found.values())).tolist(), strict=True))


def hashes_of(stream: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    hasher = Hasher()
    for _ in hasher.watch(stream):
        pass
    return hasher.hashes()


def compare(sent: Mapping[str, int], held: Mapping[str, int]) -> None:
    """Raises RunError naming the first sent tensor that is held differently or not at all."""
    for name, value in sent.items():
        if held.get(name) != value:
            how = "holds other bytes than were sent" if name in held else "does not hold it"
            raise RunError(
                f"a verified transfer of weights failed, the engine {how}: {name}",
                "an engine that keeps another dtype or layout than it is sent cannot be verified; check rollout.dtype",
            )
