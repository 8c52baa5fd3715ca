"""What the scorers said of a batch's answers, and when that is no verdict but a broken scorer."""

from __future__ import annotations

from collections.abc import Sequence

from verl_core.batch import Trajectory
from verl_core.config.errors import RunError
from verl_core.rewards.verdict import TIMEOUT


def scoring(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Answers without a score, means of the parts of rewards and how many of each part failed, and how many answers the
    engine's NaN cut short."""
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
    for name, reasons in _failures(trajectories).items():
        metrics[f"reward/{name}/failed"] = float(sum(reason is not None for reason in reasons))
    return metrics


def refuse_broken_scorer(first: Sequence[Trajectory]) -> None:
    """A scorer, or a part of the reward, that fails on all of a run's first answers is broken, not a bad policy: raises
    RunError with its reason."""
    found = {f"the part {name} of the reward": reasons for name, reasons in _failures(first).items()}
    for what, reasons in {"the reward": [t.meta["score_error"] for t in first], **found}.items():
        if first and all(reasons):
            raise RunError(
                f"{what} failed on all {len(first)} answers of the first batch: {reasons[0]}",
                "call the function by itself on such an answer; see docs/rewards.md",
            )


def _failures(trajectories: Sequence[Trajectory]) -> dict[str, list[str | None]]:
    """For each part of a composed reward, why it failed on each answer."""
    given = [t.meta.get("failures", {}) for t in trajectories]
    return {name: [failures.get(name) for failures in given] for name in (given[0] if given else {})}


def _errors(trajectories: Sequence[Trajectory]) -> list[str]:
    return [t.meta["score_error"] for t in trajectories if t.meta["score_error"]]
