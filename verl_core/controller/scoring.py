"""What the scorers said of a batch's answers, and when that is no verdict but a broken scorer."""

from __future__ import annotations

from collections.abc import Sequence

from verl_core.batch import Trajectory
from verl_core.config.errors import RunError
from verl_core.rewards.verdict import TIMEOUT


def scoring(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Answers without a score, means of the parts of rewards, and how many answers the engine's NaN cut short."""
    errors = _errors(trajectories)
    metrics = {
        "reward/failed": float(len(errors)),
        "reward/timeouts": float(sum(e.startswith(TIMEOUT) for e in errors)),
        "response/nan": float(sum("nan" in t.meta for t in trajectories)),
    }
    parts = {name for t in trajectories for name in t.reward_parts}
    for name in sorted(parts):
        values = [t.reward_parts[name] for t in trajectories if name in t.reward_parts]
        metrics[f"reward/{name}/mean"] = sum(values) / len(values)
    return metrics


def refuse_broken_scorer(first: Sequence[Trajectory]) -> None:
    """A scorer that fails on all of a run's first answers is a broken scorer, not a bad policy: raises RunError with
    its reason."""
    errors = _errors(first)
    if first and len(errors) == len(first):
        raise RunError(
            f"the reward failed on all {len(errors)} answers of the first batch: {errors[0]}",
            "call the function by itself on such an answer; see docs/rewards.md",
        )


def _errors(trajectories: Sequence[Trajectory]) -> list[str]:
    return [t.meta["score_error"] for t in trajectories if t.meta["score_error"]]
