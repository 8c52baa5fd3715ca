"""Where metrics go: the Tracker protocol, and the set of a run's trackers, none of which can stop the run."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from verl_core.config.errors import UserError
from verl_core.config.schema import TrainerConfig
from verl_core.tracking.console import ConsoleTracker
from verl_core.tracking.jsonl import JsonlTracker
from verl_core.tracking.tensorboard_events import TensorboardTracker
from verl_core.tracking.wandb_run import WandbTracker, check_mode

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """One destination of metrics. Its constructor and methods may raise: `Trackers` catches."""

    name: str
    essential: bool
    """Kept after a failure (it tries again each step) instead of being dropped."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Records the metrics of a step. Values are finite or not, but always int or float; an essential tracker is
        also told what is not known, as None."""
        ...

    def finish(self, exit_code: int) -> None:
        """Flushes and closes. exit_code: what the process is about to end with."""
        ...


class Trackers:
    """Hands every step to all trackers. One that fails is reported once and dropped (an essential one is kept); the run
    goes on in every case."""

    def __init__(self, trackers: Sequence[Tracker]):
        self._active = list(trackers)
        self._warned: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Of the trackers still at work."""
        return [t.name for t in self._active]

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Records a step. Values may be int, float, bool, anything with .item() (NumPy, torch), or None: not known."""
        known = {name: as_number(value) for name, value in metrics.items() if value is not None}
        whole = {name: known.get(name) for name in metrics}
        for tracker in list(self._active):
            self._guard(tracker, f"at step {step}", tracker.log, step, whole if tracker.essential else known)

    def finish(self, exit_code: int = 0) -> None:
        """Closes all; a second call does nothing."""
        active, self._active = self._active, []
        for tracker in active:
            self._guard(tracker, "at the end", tracker.finish, exit_code)

    def _guard(self, tracker: Tracker, when: str, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except Exception as e:
            if tracker.name not in self._warned:
                self._warned.add(tracker.name)
                fate = "will try again each step" if tracker.essential else "dropped"
                log.warning("tracker %s failed %s, %s: %s: %s", tracker.name, when, fate, type(e).__name__, e)
            if not tracker.essential and tracker in self._active:
                self._active.remove(tracker)


def as_number(value: Any) -> int | float:
    """A metric as a plain number; integers stay integers."""
    if hasattr(value, "item"):
        value = value.item()
    return value if type(value) is int else float(value)


def build_trackers(
    cfg: TrainerConfig,
    run_dir: Path,
    resume_step: int | None,
    json_mode: bool,
    total_steps: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> Trackers:
    """The trackers of `trainer.logger`, and jsonl always.

    resume_step: step of the checkpoint the run goes on from, -1 when it starts again without one, None in a new run
    directory. json_mode: step lines go to stderr, as stdout belongs to the final object. total_steps: for the console's
    time left; None: cfg.total_training_steps. config: the resolved configuration, shown by wandb.
    Raises UserError when the run's own record cannot be opened or WANDB_MODE is not a mode; any other tracker that
    fails here is reported and left out.
    """
    stream = sys.stderr if json_mode else sys.stdout
    experiment = cfg.experiment_name or run_dir.name
    try:
        built: list[Tracker] = [JsonlTracker(run_dir / "metrics.jsonl")]
    except OSError as e:
        raise UserError(
            f"cannot write {run_dir / 'metrics.jsonl'}: {e.strerror}", "choose another trainer.default_local_dir"
        ) from e
    makers: dict[str, Callable[[], Tracker]] = {
        "console": lambda: ConsoleTracker(stream, total_steps or cfg.total_training_steps),
        "tensorboard": lambda: TensorboardTracker(run_dir / "tensorboard", resume_step),
        "wandb": lambda: WandbTracker(run_dir, cfg.project_name, experiment, config or {}),
    }
    for name in dict.fromkeys(cfg.logger):
        if name == "jsonl":
            continue
        try:
            if name == "wandb":
                check_mode()
            built.append(makers[name]())
        except UserError:
            raise
        except Exception as e:
            log.warning("tracker %s failed to start, left out: %s: %s", name, type(e).__name__, e)
    return Trackers(built)
