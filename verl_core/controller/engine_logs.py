"""Where the words of rollout engines go that run in processes of their own."""

from __future__ import annotations

from pathlib import Path

from verl_core.config.schema import TrainerConfig


def engine_log(trainer: TrainerConfig, rank: int) -> Path | None:
    """logs/rollout_RANK.log in the run's folder; None for what is no run (`rlx eval`), and on a machine that does not
    see the folder. The last lines are in the error of an engine that dies, whether there is a file or not."""
    if trainer.experiment_name is None:
        return None
    run_dir = Path(trainer.default_local_dir).expanduser() / trainer.project_name / trainer.experiment_name
    return run_dir.absolute() / "logs" / f"rollout_{rank}.log" if run_dir.is_dir() else None
