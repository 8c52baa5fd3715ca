"""The embedded default keeps its promise: from a guess to worked answers, in seconds, on every seed, also beside busy
neighbours. These runs are whole, so they are slow."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import records, run_dir_of

pytestmark = pytest.mark.slow

SOURCE = "rlx/show-your-work"


def promise(summary: dict, run_dir: Path) -> None:
    assert summary["val"]["first"] <= 0.12
    assert summary["val"]["last"] >= 0.95
    lines = records(run_dir)
    assert lines[-1]["response_length/mean"] > lines[1]["response_length/mean"] + 5  # the answers grow worked lines
    assert lines[-1]["actor/entropy"] < lines[1]["actor/entropy"]


@pytest.mark.parametrize(("profile", "seed"), [("smoke", 0), ("smoke", 2), ("smoke-ppo", 0)])
def test_accuracy_rises_on_every_seed(rlx, tmp_path: Path, profile: str, seed: int):
    done = rlx("train", profile, "--json", f"trainer.seed={seed}", "trainer.experiment_name=run")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert {"warmup", "rollout", "update"} <= set(summary["seconds"])
    promise(summary, run_dir_of(tmp_path))


@pytest.fixture
def busy() -> Iterator[None]:
    """Two processes that spin for as long as the test runs, and no longer than ten minutes."""
    spin = "import time\nend = time.time() + 600\nwhile time.time() < end: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    yield
    for process in spinners:
        process.kill()
        process.wait()


def test_a_busy_machine_only_makes_it_slower_by_its_share(rlx, tmp_path: Path, busy: None):
    """One thread computes, so two busy neighbours on two cores cost about half the speed, never five times."""
    done = rlx("train", "smoke", "--json", "trainer.experiment_name=run", "trainer.total_training_steps=12")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["val"]["last"] >= 0.9
