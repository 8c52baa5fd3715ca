"""metrics.jsonl and warmup.jsonl: the record of a run, one JSON object a step."""

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)


class JsonlTracker:
    """Appends `{"step": n, ...}` a step, keys sorted, handed to the operating system at once, so that a killed process
    loses no finished step.

    Numbers keep every digit (the shortest text that reads back as the same float), so two equal runs give equal bytes
    in every repeatable key. A non-finite number is written as null and counted in a warning. When a write fails (no
    space), the lines wait in memory and are written with the next step; the error is raised for the caller to report.
    """

    name = "jsonl"
    essential = True

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._waiting = b""
        self._nulls = 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o644)

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        bad = [name for name, value in metrics.items() if value is not None and not math.isfinite(value)]
        if bad:
            self._nulls += len(bad)
            log.warning(
                "step %d: %s not finite, written as null (%d so far in %s)",
                step, ", ".join(sorted(bad)), self._nulls, self._path.name,
            )  # fmt: skip
        values = {name: None if name in bad else metrics[name] for name in sorted(metrics)}
        self._waiting += json.dumps({"step": step, **values}, allow_nan=False).encode() + b"\n"
        self._write()

    def finish(self, exit_code: int) -> None:
        try:
            if self._waiting:
                self._write()
        finally:
            os.close(self._fd)

    def _write(self) -> None:
        good = os.fstat(self._fd).st_size
        data = self._waiting
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            os.ftruncate(self._fd, good)  # no torn line before the next attempt
            raise
        self._waiting = b""
