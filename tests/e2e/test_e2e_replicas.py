"""A rollout engine that dies or hangs under `rlx train`: vLLM's CPU build, in the environment that rlx makes for it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import engines, until
from verl_core.checkpoint.find import newest_whole, require_undamaged

pytestmark = pytest.mark.slow
LENGTH = 440  # tokens of each answer, which takes seconds
WORDS = [
    "rollout.engine=vllm", "trainer.device=cpu", "rollout.gpu_memory_utilization=0.3", "trainer.test_freq=0",
    "trainer.save_freq=0", "trainer.val_before_train=false", "trainer.total_training_steps=9",
    "data.train_batch_size=4", "actor.ppo_mini_batch_size=4", "rollout.n=4", "trainer.log_rollouts=-1",
    f"data.max_response_length={LENGTH}", "rollout.ignore_eos=true",
]  # fmt: skip


@contextmanager
def training(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen, Path]]:
    """The real command, with answers that take seconds; ended at the latest with the block. Gives its run directory."""
    variables = {k: v for k, v in os.environ.items() if k != "RLX_PYTHON"} | {"NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlx", "train", "smoke", *WORDS, "trainer.experiment_name=r", *words]
    with (folder / "stderr").open("w") as stderr:
        job = subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        yield job, folder / "runs/smoke/r"
    finally:
        job.kill()
        job.wait()


def engines_without_guards(folder: Path) -> list[int]:
    found = engines(folder)
    parents = {_parent(pid) for pid in found}
    return [pid for pid in found if pid not in parents]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return -1


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def strike(job: subprocess.Popen, run: Path, step: int, how: signal.Signals) -> None:
    """Sends the signal to the engine while it answers that step: nothing else runs between two steps here."""
    folder = run.parents[2]
    until(lambda: len(lines(run / "metrics.jsonl")) == step - 1 or job.poll() is not None, 600)
    assert job.poll() is None, (folder / "stderr").read_text()
    time.sleep(0.3)
    (pid,) = engines_without_guards(folder)
    os.kill(pid, how)
    assert not (run / f"rollouts/step_{step}.jsonl").exists()


def test_engines_that_die_or_hang_are_replaced_until_the_budget_is_used_up(tmp_path, warm_model):
    """No request is lost, and none is there twice. The last checkpoint is whole: the run goes on from it."""
    words = [f"model.path={warm_model}", "rollout.stall_s=10", "rollout.restarts=2", "trainer.save_freq=1"]
    with training(tmp_path, *words) as (job, run):
        strike(job, run, 2, signal.SIGKILL)
        strike(job, run, 3, signal.SIGSTOP)
        strike(job, run, 4, signal.SIGKILL)
        told = job.wait(120), (tmp_path / "stderr").read_text()
    assert told[0] == 5 and engines(tmp_path) == []
    assert told[1].count("replica 0 is lost: the rollout engine") == 3
    last = [line for line in told[1].splitlines() if line.startswith(("error:", "hint:"))]
    assert len(last) == 2 and "Traceback" not in told[1]
    assert "no rollout replica is left of 1, after 2 restarts (rollout.restarts: 2 within 3600 s)" in last[0]

    log = (run / "train.log").read_text()
    assert "killed by SIGKILL" in log and "no sign of life for 10 s" in log and log.count("replica 0 runs again") == 2
    steps = lines(run / "metrics.jsonl")
    assert [(line["step"], line["rollout/restarts"]) for line in steps] == [(1, 0), (2, 1), (3, 2)]
    for line in steps:
        rows = lines(run / f"rollouts/step_{line['step']}.jsonl")
        assert len(rows) == 16 == len({(row["group"], row["sample"]) for row in rows})
        assert all(row["tokens"] == LENGTH and row["finish"] == "length" for row in rows)
        assert line["training/rollout_logp_diff_max"] < 1e-3  # of tokens from both sides of a loss, too

    kept = run / "checkpoints" / "global_step_3"
    assert newest_whole(run / "checkpoints") == kept
    require_undamaged(kept)
    with training(tmp_path, *words, "trainer.total_training_steps=4", "--resume") as (job, run):
        assert job.wait(240) == 0, (tmp_path / "stderr").read_text()
    assert [line["step"] for line in lines(run / "metrics.jsonl")] == [1, 2, 3, 4]
