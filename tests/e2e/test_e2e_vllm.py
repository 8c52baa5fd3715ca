"""vLLM's own engine under `rlx train`: its CPU build, in the environment that rlx makes for it."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import engines, until

pytestmark = pytest.mark.slow
OWN = {"RLX_PYTHON": None}  # the environment of the engine's extra, not the tests'
WORDS = ["rollout.engine=vllm", "trainer.device=cpu", "rollout.gpu_memory_utilization=0.3"]


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_vllm_trains_resumes_and_evaluates_as_the_trainer_computes(rlx, tmp_path):
    train = ["train", "smoke", *WORDS, "trainer.experiment_name=v", "data.val_max_samples=20"]
    first = rlx(*train, "trainer.total_training_steps=2", env=OWN, timeout=900)
    assert first.returncode == 0, first.stderr
    again = rlx(*train, "trainer.total_training_steps=3", "--resume", env=OWN, timeout=600)
    assert again.returncode == 0, again.stderr
    assert engines(tmp_path) == []

    run = tmp_path / "runs/smoke/v"
    steps = [line for line in metrics(run) if "critic/rewards/mean" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    for line in steps:
        assert line["training/rollout_logp_diff_max"] < 1e-3  # one distribution on both sides, in float32
        assert math.isfinite(line["actor/grad_norm"]) and line["actor/grad_norm"] > 0
        assert line["response_length/mean"] > 1
    assert "rollout engine and trainer differ by" in (run / "train.log").read_text()


def test_a_killed_run_leaves_no_engine(tmp_path, warm_model):
    """kill -9 of the job's process, with an engine at work in another."""
    variables = {k: v for k, v in os.environ.items() if k != "RLX_PYTHON"}
    words = ["train", "smoke", *WORDS, "trainer.experiment_name=k", "trainer.total_training_steps=10000"]
    words += [f"model.path={warm_model}", "trainer.val_before_train=false"]
    job = subprocess.Popen(
        [sys.executable, "-m", "rlx", *words], cwd=tmp_path, env=variables, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        lines = tmp_path / "runs/smoke/k/metrics.jsonl"
        until(lambda: (lines.exists() and lines.read_text().count("\n") >= 2) or job.poll() is not None, 600)
        assert job.poll() is None and engines(tmp_path)
        job.send_signal(signal.SIGKILL)
        until(lambda: not engines(tmp_path), 30)
    finally:
        job.kill()
        job.wait()
