"""Steps in trainer.profile_steps leave a trace; every step's line has its costs."""

import gzip
import json
from pathlib import Path

import pytest

from tests.e2e.conftest import run_dir_of
from verl_core.tracking.registry import check_known


@pytest.mark.slow
def test_a_step_leaves_a_trace_and_its_costs(rlx, small, tmp_path: Path):
    keys = {
        "trainer__profile_steps": "[2]",
        "trainer__profile_memory": "true",
        "actor__ppo_micro_batch_size_per_gpu": 2,
        "rollout__old_log_prob": "recompute",
        "data__val_files": "null",
    }
    words = small("smoke-ppo", steps=3, **keys)
    done = rlx(*words)
    assert done.returncode == 0, done.stderr
    run_dir = run_dir_of(tmp_path)
    assert [file.name for file in (run_dir / "profile").iterdir()] == ["step_2_rank_0.json.gz"]
    assert "profile; https://ui.perfetto.dev" in (run_dir / "train.log").read_text()
    file = run_dir / "profile" / "step_2_rank_0.json.gz"
    assert file.stat().st_size < 20e6
    with gzip.open(file, "rt") as stream:
        events = json.load(stream)["traceEvents"]
    ranges = {event["name"] for event in events if event.get("cat") == "user_annotation"}
    phases = {"rollout", "old_log_prob", "values", "update_critic", "update_actor", "push"}
    assert phases | {"micro_batch 0", "micro_batch 3", "optimizer 0", "token 0"} <= ranges
    assert "micro_batch 4" not in ranges and any(event["ph"] == "C" for event in events)

    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        check_known(line)
    last = lines[-1]
    assert last["perf/mfu/actor"] is None and last["perf/mfu/critic"] is None  # a processor has no known peak
    assert last["perf/tokens_per_s_per_gpu"] == last["perf/throughput"] > 0
    for phase in (*phases, "checkpoint"):
        assert last[f"perf/memory/{phase}/peak_gb"] >= last[f"perf/memory/{phase}/resident_gb"] > 0
    assert "ERROR" not in done.stderr and "null" not in done.stderr and "not finite" not in done.stderr
