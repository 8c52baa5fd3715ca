"""The real command on a disk that others fill while it writes: in the middle of a save, and of a merge."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import run_dir_of
from tests.support.small_disk import SmallDisk
from verl_core.checkpoint.inspect import Inspected, inspect, read_through
from verl_core.checkpoint.merge import merge, plan_merge

STEPS = 12
LACKING = re.compile(r"error: .*?([\d,]+) bytes are missing")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    (tmp_path / "disk").mkdir()
    made = SmallDisk(tmp_path / "disk", 64 << 20)  # rlx asks for half of it before a run starts
    assert made.is_tmpfs, "neither mount nor a user namespace is allowed here"
    yield made
    made.close()


def fill_during_a_save(process: subprocess.Popen[str], disk: SmallDisk, checkpoints: Path, after: int) -> None:
    """Stops the process where, after so many, a checkpoint is begun and not sealed; takes all space; lets it go on."""
    while process.poll() is None:
        if list(checkpoints.glob(".tmp-*")):
            os.kill(process.pid, signal.SIGSTOP)
            begun = [path for path in checkpoints.glob(".tmp-*") if not (path / "manifest.json").exists()]
            if begun and len(whole(checkpoints)) >= after:
                disk.fill(left=0)
            os.kill(process.pid, signal.SIGCONT)
            if (disk.folder / "filler").exists():
                return
        time.sleep(0.001)
    pytest.fail(f"the run ended before it was met at a save: {process.communicate()}")


def whole(checkpoints: Path) -> list[Inspected]:
    return [found for found in inspect(checkpoints) if found.whole]


@pytest.mark.slow
def test_a_run_whose_disk_fills_up_during_a_save_goes_on_when_there_is_space(start, train_here, small, disk):
    """Once behind training, once while training waits."""
    words = small("smoke", steps=STEPS, trainer__save_freq=1, trainer__test_freq=0, data__val_files="null")
    unbroken = train_here([*words, "trainer.experiment_name=unbroken", "trainer.save_freq=-1"])
    here = [*words, f"trainer.default_local_dir={disk.folder}"]
    checkpoints = disk.folder / "smoke" / "run" / "checkpoints"
    for after, more in ((2, []), (4, ["--resume", "trainer.async_save=false"])):
        process = start(*here, *more)
        fill_during_a_save(process, disk, checkpoints, after)
        _, told = process.communicate(timeout=60)
        assert process.returncode == 5, told
        assert "Traceback" not in told and "earlier checkpoints are intact" in told and "--resume" in told
        kept = whole(checkpoints)
        assert 0 < int(LACKING.search(told)[1].replace(",", "")) <= kept[-1].manifest.total_bytes
        assert after <= len(kept) < STEPS and kept == inspect(checkpoints)
        assert all(read_through(found).whole for found in kept)
        assert {path.name for path in checkpoints.iterdir()} == {found.path.name for found in kept} | {"latest"}
        disk.free()
    assert train_here(here, resume=True) == unbroken


@pytest.mark.slow
def test_a_merge_whose_disk_fills_up_leaves_nothing_behind(rlx, train_here, small, disk, tmp_path: Path):
    train_here(small("smoke", steps=1, trainer__test_freq=0, data__val_files="null"))
    out = disk.folder / "out"
    tensors = sum(path.stat().st_size for path in run_dir_of(tmp_path).glob("checkpoints/*/actor/weights/*"))
    disk.fill(left=tensors)  # so that it seems to fit, and does not: there are other files
    done = rlx("merge", str(run_dir_of(tmp_path)), "--out", str(out))
    assert done.returncode == 5, done.stderr
    assert 0 < int(LACKING.search(done.stderr)[1].replace(",", "")) < tensors and "Traceback" not in done.stderr
    assert [path.name for path in disk.folder.iterdir()] == ["filler"]
    disk.free()
    merge(plan_merge(run_dir_of(tmp_path), out))
    assert (out / "model.safetensors").is_file()
