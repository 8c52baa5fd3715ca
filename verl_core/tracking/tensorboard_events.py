"""Event files for TensorBoard, in RUN_DIR/tensorboard."""

from collections.abc import Mapping
from pathlib import Path


class TensorboardTracker:
    """One scalar a metric. On resume, what an earlier attempt wrote after `resume_step` is purged: TensorBoard shows
    every step once."""

    name = "tensorboard"
    essential = False

    def __init__(self, folder: Path, resume_step: int | None):
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(log_dir=str(folder), purge_step=purge)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, exit_code: int) -> None:
        self._writer.close()
