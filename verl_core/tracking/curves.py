"""What a plot shows, whichever way it is drawn: curves over steps, read from a run's records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError
from verl_core.tracking.files import read_jsonl
from verl_core.tracking.summary import VAL_PREFIX, validation_score

FLAT_MARGIN = 5e-4  # shown above and below a curve that does not move


@dataclass
class Curve:
    """Finite values of one metric; steps where it is absent or null are left out."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.steps)


@dataclass
class Run:
    """The records of one run."""

    name: str
    lines: list[dict[str, Any]]
    warmup: list[dict[str, Any]]

    def curve(self, metric: str) -> Curve:
        source = self.warmup if metric.startswith("warmup/") else self.lines
        found = [(line["step"], line[metric]) for line in source if line.get(metric) is not None]
        return Curve([s for s, _ in found], [v for _, v in found])

    @property
    def validation(self) -> Curve:
        """Mean val/test_score over the data sources."""
        return self.held_out(VAL_PREFIX)

    def held_out(self, prefix: str) -> Curve:
        """Mean over the data sources of the metrics that begin so; nothing for an empty prefix."""
        scores = ((line["step"], validation_score(line, prefix)) for line in self.lines if prefix)
        found = [(step, score) for step, score in scores if score is not None]
        return Curve([s for s, _ in found], [v for _, v in found])

    @property
    def phase_starts(self) -> list[int]:
        """Last step of each warm-up phase but the last."""
        return [
            a["step"]
            for a, b in zip(self.warmup, self.warmup[1:], strict=False)
            if a["warmup/phase"] != b["warmup/phase"]
        ]


@dataclass(frozen=True)
class Panel:
    """One diagram: a metric of every run over its steps."""

    title: str
    unit: str
    metric: str
    x: str = "step"
    held_out: str = ""
    """Beginning of the metrics of validation that are drawn beside it."""


CHOICES: tuple[tuple[Panel, ...], ...] = (
    (
        Panel("Reward", "", "critic/score/mean", held_out=VAL_PREFIX),
        Panel("Loss", "nats", "reward_model/loss", held_out="val/loss/"),
        Panel("Loss", "nats", "actor/loss", held_out="val/loss/"),
    ),
    (Panel("Response length", "tokens", "response_length/mean"),),
    (
        Panel("Pairs in the right order", "share", "reward_model/rewards/accuracy", held_out="val/acc/"),
        Panel("Pairs in the right order", "share", "actor/rewards/accuracy", held_out="val/acc/"),
        Panel("Entropy", "nats", "actor/entropy"),
    ),
    (
        Panel("KL to the reference", "nats", "actor/kl_loss"),
        Panel("KL to the reference", "nats", "actor/reward_kl_penalty"),
        Panel("Margin of rewards", "", "reward_model/rewards/margin", held_out="val/margin/"),
        Panel("Margin of rewards", "", "actor/rewards/margin", held_out="val/margin/"),
        Panel("KL of one update", "nats", "actor/ppo_kl"),
    ),
    (Panel("Step time", "seconds", "timing_s/step"),),
    (
        Panel("Warm-up loss", "nats", "warmup/loss", x="warm-up step"),
        Panel("Gradient norm", "", "reward_model/grad_norm"),
        Panel("Gradient norm", "", "actor/grad_norm"),
    ),
)


def load_run(run_dir: Path) -> Run:
    """Raises UserError when the folder holds no metrics, or broken ones."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        raise UserError(f"{run_dir} is not a run directory: it has no metrics.jsonl", "rlx runs ls")
    lines = list(read_jsonl(path))
    if not lines:
        raise UserError(f"{path} holds no finished step yet", "plot again after the first step")
    return Run(run_dir.resolve().name, lines, list(read_jsonl(run_dir / "warmup.jsonl")))


def panels(runs: Sequence[Run]) -> list[Panel]:
    """The diagrams for these runs: of each choice the first that has data in any run (the last where none has)."""
    return [next((p for p in choice if any(r.curve(p.metric) for r in runs)), choice[-1]) for choice in CHOICES]


def is_flat(low: float, high: float) -> bool:
    """Whether values differ by no more than rounding, so that they are drawn as one level and not magnified."""
    return high - low < 1e-6


def headline(runs: Sequence[Run]) -> str:
    """`smoke-1: 60 steps, reward 0.20 → 0.93, held out 0.04 → 0.98`, or the runs' number."""
    if len(runs) > 1:
        return f"{len(runs)} runs"
    run = runs[0]
    parts = [f"{run.lines[-1]['step']} steps"]
    told = [("reward", run.curve("critic/score/mean")), ("held out", run.validation)]
    if not any(curve for _, curve in told):
        told = [("held-out loss", run.held_out("val/loss/")), ("accuracy", run.held_out("val/acc/"))]
    for word, curve in told:
        if curve:
            parts.append(f"{word} {curve.values[0]:.2f} → {curve.values[-1]:.2f}")
    return f"{run.name}: {', '.join(parts)}"
