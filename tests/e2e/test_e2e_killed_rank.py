"""A rank that is killed while it writes its part of a checkpoint."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import records, run_dir_of
from verl_core.checkpoint.inspect import inspect, read_through

SHARD = re.compile(r"/\.tmp-global_step_[^/]*/.*shard-")
STEPS = 12


def kill_a_rank_that_writes(process: subprocess.Popen[str], checkpoints: Path, after: int) -> None:
    """kill -9 for a rank as soon as a shard is open in it, when so many checkpoints are there."""
    while process.poll() is None:
        if not (checkpoints / f"global_step_{after}").exists():
            time.sleep(0.02)
            continue
        if list(checkpoints.glob(".tmp-*")) and (found := writers(checkpoints)):
            os.kill(found[0], signal.SIGKILL)
            return
        time.sleep(0.001)
    pytest.fail(f"the run ended before a rank was met at a shard: {process.communicate()}")


def writers(checkpoints: Path) -> list[int]:
    """Processes that have a shard below `checkpoints` open."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cmdline").read_bytes().startswith(b"ray::"):
                opened = [str(descriptor.readlink()) for descriptor in (entry / "fd").iterdir()]
                if any(path.startswith(str(checkpoints)) and SHARD.search(path) for path in opened):
                    found.append(int(entry.name))
        except OSError:  # it has ended, or closed that file
            continue
    return found


@pytest.mark.slow
def test_a_rank_killed_while_it_writes_its_shard_costs_that_checkpoint_alone(start, train_here, small, tmp_path: Path):
    """Once behind training, once while training waits; then another executor goes on with what both have left."""
    words = small("smoke", steps=STEPS, trainer__save_freq=1, trainer__test_freq=0, data__val_files="null")
    unbroken = train_here([*words, "trainer.experiment_name=unbroken"])
    run_dir = run_dir_of(tmp_path)
    checkpoints = run_dir / "checkpoints"
    seen: list[dict] = []
    for after, more in ((1, []), (3, ["--resume", "trainer.async_save=false"])):
        process = start(*words, "cluster.nproc=2", *more)
        kill_a_rank_that_writes(process, checkpoints, after)
        printed, told = process.communicate(timeout=60)
        assert process.returncode == 5, told
        assert told.count("a rank's process died") == 1 and "error: " in told and "--resume" in told
        assert "Traceback" not in told and "raylet" not in printed + told
        kept = inspect(checkpoints)
        assert after <= len(kept) < STEPS and all(read_through(found).whole for found in kept)
        lines = records(run_dir)
        assert lines[: len(seen)] == seen, "the steps that were taken again are bit by bit those of before"
        assert len(lines) >= len(kept), "a step is lost"  # the last one may not have been told yet
        seen = lines
    resumed = train_here([*words, "cluster.executor=local"], resume=True)
    assert [line["training/global_step"] for line in resumed] == list(range(1, STEPS + 1))
    assert resumed[: len(kept)] == seen[: len(kept)]
    for line, same in zip(resumed, unbroken, strict=True):
        for name in ("actor/loss", "actor/grad_norm", "critic/score/mean"):
            assert line[name] == pytest.approx(same[name], rel=1e-5, abs=1e-6), name
