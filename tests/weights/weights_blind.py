"""An engine that keeps weights in a form of its own and cannot give them back, as vLLM does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


class BlindEngine:
    def update_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.total = sum(float(tensor.double().sum()) for _, tensor in stream)


def make(keeps: bool) -> Any:
    return BlindEngine()
