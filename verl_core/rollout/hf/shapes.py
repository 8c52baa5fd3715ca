"""Which shapes a decode step has, and how far the host runs ahead of the device."""

from __future__ import annotations

from dataclasses import dataclass

from verl_core.rollout.hf.cache import aligned


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


@dataclass(frozen=True)
class Shapes:
    """Exact (a CPU): a step computes the rows that run and nothing else, and its tokens are read at once.

    In buckets (a GPU): rows and positions are rounded up, so that few shapes occur and each can be a CUDA graph, and
    tokens are read `lag` steps late, while the device computes. Free slots are then filled several at a time, because a
    pass over prompts costs the host more than a decode step that is a graph.

    Shapes depend on the requests and the engine's limits alone, not on what was generated before.
    """

    max_rows: int
    max_positions: int
    bucketed: bool
    lag: int

    def width(self, rows: int) -> int:
        """Rows of a step in which slots 0 to `rows` - 1 run: powers of two, then multiples of 32, then of 128."""
        if not self.bucketed:
            return rows
        size = max(8, 1 << (rows - 1).bit_length()) if rows <= 32 else _up(rows, 32 if rows <= 256 else 128)
        return min(size, self.max_rows)

    def reach(self, positions: int) -> int:
        """Positions that attention looks at where `positions` are in use, a multiple of 8."""
        if not self.bucketed:
            return aligned(positions)
        step = 128 if positions <= 1024 else 256 if positions <= 4096 else 1024
        return min(_up(positions, step), aligned(self.max_positions))

    def refill(self, slots: int) -> int:
        """How many free slots are worth a pass over prompts while other rows run."""
        return max(1, slots // 8) if self.bucketed else 1
