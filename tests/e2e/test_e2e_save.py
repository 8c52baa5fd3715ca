"""Checkpoints of the real command that are written while it trains: killed, on a full disk, on two ranks."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import command_variables
from tests.e2e.conftest import records, run_dir_of
from tests.e2e.test_e2e_repeat import wait_for
from verl_core.checkpoint.inspect import inspect


def steps(run_dir: Path) -> list[int]:
    return [c.step for c in inspect(run_dir / "checkpoints") if c.whole]


@pytest.mark.slow
def test_killed_five_times_it_ends_as_the_unbroken_run(rlx, small, start, train_here, tmp_path: Path):
    words = small("smoke", steps=8, trainer__save_freq=1, trainer__test_freq=0, data__val_files="null")
    unbroken = train_here([*words, "trainer.experiment_name=unbroken"])
    run_dir, draw = run_dir_of(tmp_path), random.Random(3)
    for kill in range(5):
        process = start(*words, *(["--resume"] if kill else []))
        wait_for(run_dir / "checkpoints" / f"global_step_{kill + 1}", process)
        time.sleep(draw.uniform(0, 0.3))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = rlx(*words, "--resume")
    assert done.returncode == 0, done.stderr
    assert records(run_dir) == unbroken
    assert steps(run_dir) == list(range(1, 9))
    assert not list((run_dir / "checkpoints").glob(".tmp-*"))


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_exit_5_and_the_last_checkpoint_is_whole(rlx, small, tmp_path: Path):
    quick = {"trainer__test_freq": 0, "data__val_files": "null", "trainer__save_freq": 1}
    assert rlx(*small("smoke", steps=2, **quick)).returncode == 0
    limit = 20_000  # bytes of a file; a checkpoint has larger ones

    done = subprocess.run(
        [sys.executable, "-m", "rlx", *small("smoke", steps=30, **quick), "--resume"],
        cwd=tmp_path,
        env=command_variables({}),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 5, done.stderr
    assert "File too large" in done.stderr and "Traceback" not in done.stderr
    assert steps(run_dir_of(tmp_path)) == [1, 2]
    assert not list((run_dir_of(tmp_path) / "checkpoints").glob(".tmp-*"))


@pytest.mark.slow
def test_what_two_ranks_write_behind_training_one_continues(rlx, train_here, small, tmp_path: Path):
    quick = {"trainer__test_freq": 0, "data__val_files": "null", "trainer__save_freq": 1}
    done = rlx(*small("smoke", steps=2, cluster__nproc=2, **quick))
    assert done.returncode == 0, done.stderr
    run_dir = run_dir_of(tmp_path)
    assert steps(run_dir) == [1, 2]
    assert inspect(run_dir / "checkpoints")[0].manifest.roles == {"actor": 2}
    by_two = records(run_dir)[-1]
    for path in (run_dir / "checkpoints" / "global_step_2").rglob("*"):
        if path.is_file():
            path.unlink()
    by_one = train_here(small("smoke", steps=2, **quick), resume=True)[-1]
    for name in ("actor/loss", "actor/grad_norm", "critic/score/mean"):
        assert by_one[name] == pytest.approx(by_two[name], rel=1e-5, abs=1e-6), name


@pytest.mark.slow
def test_other_micro_batches_after_a_resume_change_nothing(train_here, small):
    """And neither does another way of saving."""
    words = small("smoke", steps=3, trainer__save_freq=1, trainer__test_freq=0, data__val_files="null")
    unbroken = train_here([*words, "trainer.experiment_name=unbroken"])
    train_here([*words, "trainer.async_save=false"], until=2)
    resumed = train_here([*words, "actor.ppo_micro_batch_size_per_gpu=2"], resume=True)
    assert resumed[:2] == unbroken[:2]
    for name in ("actor/loss", "actor/grad_norm", "critic/score/mean"):
        assert resumed[2][name] == pytest.approx(unbroken[2][name], rel=1e-5, abs=1e-6), name


@pytest.mark.slow
def test_another_executor_other_ranks_and_other_micro_batches_take_over_and_give_back(rlx, train_here, small, tmp_path):
    """One process, four ranks under Ray, one process."""
    words = small("smoke", steps=4, trainer__save_freq=1, trainer__test_freq=0, data__val_files="null")
    unbroken = train_here([*words, "trainer.experiment_name=unbroken"])
    train_here([*words, "cluster.executor=local"], until=2)
    others = ["cluster.executor=ray", "cluster.nproc=4", "actor.ppo_micro_batch_size_per_gpu=2"]
    done = rlx(*words, *others, "trainer.total_training_steps=3", "--resume")
    assert done.returncode == 0, done.stderr
    assert [c.manifest.roles["actor"] for c in inspect(run_dir_of(tmp_path) / "checkpoints")] == [1, 1, 4]
    resumed = train_here([*words, "cluster.executor=local"], resume=True)
    assert resumed[:2] == unbroken[:2] and len(resumed) == 4
    for line, same in zip(resumed, unbroken, strict=True):
        for name in ("actor/loss", "actor/grad_norm", "critic/score/mean", "response_length/mean"):
            assert line[name] == pytest.approx(same[name], rel=1e-5, abs=1e-6), name
