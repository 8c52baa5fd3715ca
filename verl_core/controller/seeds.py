"""Every random draw is keyed by what it is for, never by a rank's or a process's own generator, so that a run repeats
bit for bit after a restart and on another number of ranks."""

import hashlib


def draw_seed(seed: int, purpose: str, *key: object) -> int:
    """A 63-bit seed for one draw, e.g. draw_seed(0, "rollout", step, uid, sample)."""
    text = "\x1f".join([str(seed), purpose, *map(str, key)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
