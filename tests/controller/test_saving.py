"""A checkpoint that is written while the run goes on: who waits for it, and whom its errors reach."""

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.controller.controller_tiny import one_rank, tiny_config, tiny_model
from verl_core.checkpoint import CheckpointStore
from verl_core.checkpoint.retention import Retention
from verl_core.checkpoint.staging import StagedFile
from verl_core.config.errors import RunError
from verl_core.controller.roles import Role
from verl_core.controller.saving import Progress, Saver


class Disk:
    """Writes of shards wait until it is `open`; with `full`, they fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.open, self.full = threading.Event(), False
        write = StagedFile.write

        def slow(file: StagedFile) -> None:
            assert self.open.wait(60)
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(file)

        monkeypatch.setattr(StagedFile, "write", slow)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def saving(tmp_path: Path) -> Callable[[Callable[[Saver], Awaitable[None]]], Path]:
    """Runs work with the saver of one real rank; returns the folder of its checkpoints."""

    def run(work: Callable[[Saver], Awaitable[None]]) -> Path:
        nothing = SimpleNamespace(state=dict)
        with one_rank(tiny_config("smoke"), tiny_model(tmp_path / "model")) as group:
            store = CheckpointStore(tmp_path / "checkpoints", Retention(1, "val"))
            asyncio.run(work(Saver(store, [Role("actor", group)], nothing, nothing, nothing)))
        return store.folder

    return run


def steps(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("global_step_*")}


async def save(saver: Saver, step: int, behind: bool = True) -> None:
    await saver.save(Progress(step, step), {"training/global_step": step, "val": -step}, behind)


def test_training_goes_on_and_the_end_waits(saving, disk):
    """Case K20."""

    async def work(saver: Saver) -> None:
        await save(saver, 1)
        saver.check()
        assert saver.saved_step == 1 and saver.store.latest() is None
        asyncio.get_running_loop().call_later(0.2, disk.open.set)
        await saver.finish()
        assert saver.store.latest() is not None

    assert steps(saving(work)) == {"global_step_1"}


def test_the_next_save_waits_for_the_last_and_the_best_stays(saving, disk):
    async def work(saver: Saver) -> None:
        await save(saver, 1)
        second = asyncio.create_task(save(saver, 2))
        await asyncio.sleep(0.1)
        assert not second.done()
        disk.open.set()
        await second
        await save(saver, 3, behind=False)
        assert saver.store.latest() == saver.store.folder / "global_step_3"

    assert steps(saving(work)) == {"global_step_1", "global_step_3"}


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("val/scor/x", "it has val/score/x"),
        ("val/best", "it has val/acc/x, val/score/x"),
        ("best", "metrics.jsonl has the names of all"),
    ],
)
def test_a_metric_that_a_step_has_not_is_told_with_what_it_has(tmp_path, caplog, metric, says):
    store = CheckpointStore(tmp_path, Retention(1, metric))
    saver = Saver(store, [], *[SimpleNamespace(state=dict)] * 3)
    measured = {"training/global_step": 1.0, "val/score/x": 0.5, "val/acc/x": 0.5, "actor/kl": 0.0}
    asyncio.run(saver.save(Progress(1, 1), measured))
    assert f"step 1 has no {metric}, so its checkpoint cannot be the best; {says}" in caplog.text


def test_an_error_of_the_writer_reaches_the_run_and_the_last_checkpoint_stays(saving, disk):
    async def work(saver: Saver) -> None:
        disk.open.set()
        await save(saver, 1, behind=False)
        disk.full = True
        await save(saver, 2)
        with pytest.raises(RunError, match=r"bytes are missing; earlier checkpoints are intact"):
            while True:  # as the loop of training does after each step
                saver.check()
                await asyncio.sleep(0.01)
        saver.check()  # told once
        disk.full = False
        await save(saver, 3, behind=False)

    folder = saving(work)
    assert steps(folder) == {"global_step_1", "global_step_3"}
    assert not list(folder.glob(".tmp-*"))


def test_a_run_that_fails_for_another_reason_keeps_what_was_being_written(saving, disk, caplog):
    async def work(saver: Saver) -> None:
        await save(saver, 1)
        disk.open.set()
        await saver.close()
        disk.full = True
        await save(saver, 2)
        await saver.close()
        assert caplog.text.count("bytes are missing") == 1
        await save(saver, 3)
        with pytest.raises(RunError) as raised:
            await saver.finish()
        caplog.clear()
        await save(saver, 3)
        await saver.close(RunError, raised.value)
        assert "bytes are missing" not in caplog.text, "what has ended the run is told by it"

    assert steps(saving(work)) == {"global_step_1"}
