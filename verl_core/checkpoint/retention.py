"""Which checkpoints of a run are removed when a new one is whole."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verl_core.checkpoint.folders import Folder
from verl_core.checkpoint.inspect import step_of
from verl_core.checkpoint.manifest import Manifest, Score
from verl_core.config.errors import UserError


@dataclass(frozen=True)
class Retention:
    """The `newest` ones stay (None: all) and, where a metric is named, the best by it."""

    newest: int | None = None
    metric: str | None = None
    mode: Literal["max", "min"] = "max"

    def __post_init__(self) -> None:
        if self.newest is not None and self.newest < 1:
            raise UserError(
                f"trainer.max_ckpt_to_keep is {self.newest}, but at least 1 checkpoint is kept", "use null for all"
            )

    def score(self, value: float | None) -> Score | None:
        """What a checkpoint's manifest says of the metric; None where it has no value at that step, or not a number."""
        if self.metric is None or value is None or not math.isfinite(value):
            return None
        return Score(self.metric, value)

    def best(self, checkpoints: Sequence[tuple[Folder, Manifest]]) -> Folder | None:
        """The best of whole checkpoints in the order they were written: of equals the newest. None without a metric, or
        where none has a value of it."""
        sign = 1 if self.mode == "max" else -1
        scored = [
            (sign * manifest.score.value, manifest.serial, path)
            for path, manifest in checkpoints
            if manifest.score is not None and manifest.score.metric == self.metric
        ]
        return max(scored)[2] if scored else None

    def superfluous(self, checkpoints: Sequence[tuple[Folder, Manifest]]) -> list[Folder]:
        """Those to remove, of whole checkpoints in the order they were written. Never the newest, nor a copy that a
        person has made under another step's name: it is not counted either."""
        if self.newest is None:
            return []
        own = [(path, manifest) for path, manifest in checkpoints if step_of(path) == manifest.step]
        best = self.best(own)
        return [path for path, _ in own[: -self.newest] if path != best]
