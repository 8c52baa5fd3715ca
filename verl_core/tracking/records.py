"""What stands in the run directory beside checkpoints: run.json, rollouts/, summary.json."""

import json
import logging
import os
import platform
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError
from verl_core.tracking.files import plain, read_json, read_jsonl, write_atomic, write_json
from verl_core.tracking.summary import summarise

log = logging.getLogger(__name__)

# Packages whose version can change a run's numbers.
PACKAGES = ("torch", "transformers", "ray", "vllm", "sglang", "datasets", "numpy")


class RunRecords:
    """Keeps one run directory's records. Only `start` and `cut_back` raise; records written while training runs are
    worth a warning, not the run."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self._began = time.monotonic()

    def start(
        self,
        hardware: Mapping[str, Any],
        data: Mapping[str, str] | None = None,
        resume_step: int | None = None,
        checkpoints: str | None = None,
    ) -> None:
        """Adds to run.json what only the job knows: hardware (from the platform), Python and package versions, hashes
        of the data, the URL of the checkpoints that are on an object store, and one entry an attempt (pid, start, step
        it goes on from). Raises UserError when run.json cannot be read or written."""
        record = read_json(self.run_dir / "run.json")
        attempt = {"pid": os.getpid(), "started": datetime.now(UTC).isoformat(), "resume_step": resume_step}
        record |= {
            "hardware": dict(hardware),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "packages": {name: v for name in PACKAGES if (v := package_version(name))},
            "data": dict(data or {}),
            "checkpoints": checkpoints,
            "attempts": [*record.get("attempts", []), attempt],
        }
        try:
            write_json(self.run_dir / "run.json", record)
        except OSError as e:
            path = self.run_dir / "run.json"
            raise UserError(f"cannot write {path}: {e.strerror}", "choose another trainer.default_local_dir") from e

    def cut_back(self, step: int) -> None:
        """Before a run goes on from the checkpoint of `step` (-1: it starts again without one): drops what was recorded
        after it, so that the files read as if the run had never stopped. TensorBoard's tracker purges its own part."""
        path = self.run_dir / "metrics.jsonl"
        if path.exists():
            cut_lines(path, step)
        for rollouts in (self.run_dir / "rollouts").glob("step_*.jsonl"):
            number = rollouts.stem.removeprefix("step_")
            if number.isdigit() and int(number) > step:
                rollouts.unlink()
        (self.run_dir / "summary.json").unlink(missing_ok=True)

    def write_rollouts(self, step: int, trajectories: Sequence[Mapping[str, Any]], n: int) -> None:
        """Writes n of the step's answers (-1: all), taken at even distances so that several prompts are seen, to
        rollouts/step_N.jsonl, one JSON object a line."""
        if n == 0 or not trajectories:
            return
        chosen = spread(len(trajectories), n)
        lines = [json.dumps(plain(trajectories[i]), ensure_ascii=False) + "\n" for i in chosen]
        try:
            (self.run_dir / "rollouts").mkdir(exist_ok=True)
            write_atomic(self.run_dir / "rollouts" / f"step_{step}.jsonl", "".join(lines))
        except OSError as e:
            log.warning("rollouts of step %d not written: %s", step, e)

    def finish(self, exit_reason: str, unlogged: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Writes summary.json from the records (all attempts of the run counted) and returns it. exit_reason: finished,
        interrupted, terminated, or failed: <message>. unlogged: `Timer.unlogged()`, seconds that stand in no line."""
        summary = summarise(self.run_dir, unlogged or {}) | {
            "wall_s": round(time.monotonic() - self._began, 3),
            "exit_reason": exit_reason,
        }
        try:
            write_json(self.run_dir / "summary.json", summary)
        except OSError as e:
            log.warning("summary.json not written: %s", e)
        return summary


def cut_lines(path: Path, step: int) -> None:
    """Keeps the lines of a metrics file up to `step` and drops a torn last line. Atomic."""
    kept = [json.dumps(line) + "\n" for line in read_jsonl(path) if line["step"] <= step]  # same bytes as were read
    write_atomic(path, "".join(kept))


def spread(count: int, n: int) -> list[int]:
    """n indices (-1 or n >= count: all) at even distances over range(count), the first always among them."""
    if n < 0 or n >= count:
        return list(range(count))
    return [i * count // n for i in range(n)]


def package_version(name: str) -> str | None:
    """The installed version, without importing the package; None where it is absent."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
