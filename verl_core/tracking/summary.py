"""A run in one JSON object, computed from its records alone, so that a run of several attempts counts in full."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_core.tracking.files import read_jsonl

# timing_s/<key> -> the word of the summary; phases not named here keep their own.
PHASES = {
    "gen": "rollout",
    "update_actor": "update",
    "update_critic": "update",
    "old_log_prob": "log_prob",
    "ref": "log_prob",
    "testing": "validation",
    "save_checkpoint": "checkpoint",
    "step": "steps",
}
VAL_PREFIX = "val/test_score/"


def summarise(run_dir: Path, unlogged: Mapping[str, float]) -> dict[str, Any]:
    """Keys: run_dir; steps, the last step taken; seconds {warmup, rollout, reward, update, ..., steps} where steps is
    the whole of all training steps; val {first, last}, mean test score over the data sources (null: not validated);
    tokens_per_s, tokens of all steps a second of all steps, on all ranks (null: none taken).
    unlogged: timing_s/* that stand in no line."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for line in read_jsonl(run_dir / "warmup.jsonl"):
        seconds["warmup"] += line.get("timing_s/step") or 0.0
    steps, tokens, stepping, scores = 0, 0, 0.0, []
    for line in [*read_jsonl(run_dir / "metrics.jsonl"), {"step": 0, **unlogged}]:
        steps = max(steps, line["step"])
        for name, value in line.items():
            if name.startswith("timing_s/") and value is not None:
                phase = name.removeprefix("timing_s/")
                seconds[PHASES.get(phase, phase)] += value
        if line.get("perf/total_num_tokens"):
            tokens += line["perf/total_num_tokens"]
            stepping += line["perf/time_per_step"]
        if (score := validation_score(line)) is not None:
            scores.append(score)
    return {
        "run_dir": str(run_dir),
        "steps": steps,
        "seconds": {phase: round(s, 3) for phase, s in seconds.items()},
        "val": {"first": scores[0], "last": scores[-1]} if scores else None,
        "tokens_per_s": round(tokens / stepping, 1) if stepping else None,
    }


def validation_score(line: Mapping[str, Any], prefix: str = VAL_PREFIX) -> float | None:
    """Mean of val/test_score/* (or another prefix's metrics) over the data sources of one metrics line; None where the
    step was not validated."""
    values = [v for name, v in line.items() if name.startswith(prefix) and v is not None]
    return sum(values) / len(values) if values else None
