"""The store: whole or absent, newest first, keep-N, foreign folders, full disks."""

import json
import logging
import multiprocessing
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_models import engine_state, save_run, tiny_model

from verl_core.checkpoint import CheckpointStore, find_checkpoint, save_role
from verl_core.checkpoint.manifest import checksum, content_faults, faults, read_manifest
from verl_core.config.errors import RunError, UserError
from verl_core.training.protocol import EngineState


def save(store: CheckpointStore, step: int, text: str = "x") -> Path:
    with store.saving(step) as folder:
        (folder / "trainer.json").write_text(json.dumps(text))
    return store.folder / f"global_step_{step}"


def edit(folder: Path, **fields: object) -> None:
    """Changes its manifest by hand."""
    manifest = json.loads((folder / "manifest.json").read_text()) | fields
    (folder / "manifest.json").write_text(json.dumps(manifest))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_checkpoint_appears_only_when_committed(tmp_path):
    store = CheckpointStore(tmp_path / "not/there/yet")
    folder = store.begin(1)
    (folder / "trainer.json").write_text("{}")
    assert store.latest() is None
    assert store.commit(1) == store.latest() == store.folder / "global_step_1"
    assert (store.folder / "latest").read_text().strip() == "global_step_1"
    manifest = json.loads((store.latest() / "manifest.json").read_text())
    assert manifest["step"] == 1 and manifest["format"] == 1
    assert manifest["files"]["trainer.json"]["bytes"] == 2
    assert len(manifest["files"]["trainer.json"]["blake2b"]) == 40
    assert names(store.folder) == {"global_step_1", "latest"}


def test_keep_holds_across_restarts_and_spares_foreign_folders(tmp_path):
    """Case K6, as the next test and the full disks below."""
    foreign = ["global_step_7_best", "best", "global_step_99"]  # the last one has no manifest: not ours to delete
    for name in foreign:
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    for step in range(1, 7):
        save(CheckpointStore(tmp_path, keep=2), step)  # a new store each time: a resumed run
        assert {f"global_step_{s}" for s in (step - 1, step) if s > 0} | {"notes.txt", "latest", *foreign} == names(
            tmp_path
        )


def test_keep_one_keeps_the_old_until_the_new_is_whole(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1)
    with pytest.raises(ValueError, match="boom"), store.saving(2) as folder:
        (folder / "trainer.json").write_text("{}")
        assert (tmp_path / "global_step_1").is_dir()
        raise ValueError("boom")
    assert names(tmp_path) == {"global_step_1", "latest"}
    save(store, 3)
    save(CheckpointStore(tmp_path, keep=1), 4)
    assert names(tmp_path) == {"global_step_4", "latest"}


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(UserError, match="max_ckpt_to_keep is 0"):
        CheckpointStore(tmp_path, keep=0)


def test_earlier_step_saved_later_is_the_newest(tmp_path, caplog):
    """Case K14, as the folder that cannot be removed and the eight processes below."""
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 10)
    with caplog.at_level(logging.WARNING):
        save(store, 5)
    assert "step 5 is written after that of step 10" in caplog.text
    assert store.latest() == tmp_path / "global_step_5"
    assert names(tmp_path) == {"global_step_5", "latest"}


def test_saving_a_step_again_replaces_it(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 5, "old")
    save(store, 5, "new")
    assert json.loads((store.latest() / "trainer.json").read_text()) == "new"
    assert names(tmp_path) == {"global_step_5", "latest"}


def test_foreign_folder_with_the_name_of_a_step_is_kept(tmp_path):
    (tmp_path / "global_step_5").mkdir()
    (tmp_path / "global_step_5/mine.pt").write_text("mine")
    store = CheckpointStore(tmp_path)
    save(store, 5)
    assert store.latest() == tmp_path / "global_step_5"
    (kept,) = tmp_path.glob("global_step_5.foreign-*")
    assert (kept / "mine.pt").read_text() == "mine"


def test_a_replaced_step_comes_back_when_its_successor_cannot_take_its_place(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 5, "old")
    rename = Path.rename

    def refuse_the_new(path, target):
        if path.name.startswith(".tmp-"):
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new)
    with pytest.raises(RunError, match=r"cannot write in .*: Input/output error"):
        save(store, 5, "new")
    assert json.loads((store.latest() / "trainer.json").read_text()) == "old"
    assert names(tmp_path) == {"global_step_5", "latest"}


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda folder: (folder / "trainer.json").unlink(), "trainer.json is missing (3 bytes)"),
        (lambda folder: (folder / "trainer.json").write_text("1"), "trainer.json has 1 of 3 bytes"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda folder: (folder / "manifest.json").write_text('{"step": 2'), "manifest.json is unreadable"),
        (
            lambda folder: (folder / "manifest.json").write_text('{"files": {}, "step": 2}'),
            "manifest.json is unreadable",
        ),
        (lambda folder: edit(folder, serial=None), "serial has no whole number"),
        (lambda folder: edit(folder, roles={"actor": "two"}), "actor has no whole number"),
        (
            lambda folder: edit(folder, files={"../x": {"bytes": 1, "blake2b": ""}}),
            "manifest.json names files that are not below it: ../x",
        ),
    ],
)
def test_a_broken_newer_checkpoint_is_skipped_by_name(tmp_path, caplog, harm, says):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    harm(save(store, 2))
    with caplog.at_level(logging.WARNING):
        assert store.latest() == tmp_path / "global_step_1"
    assert "global_step_2" in caplog.text and says in caplog.text
    assert find_checkpoint(tmp_path) == tmp_path / "global_step_1"
    with pytest.raises(UserError, match="global_step_2 is not a whole checkpoint") as error:
        find_checkpoint(tmp_path / "global_step_2")
    assert says in error.value.message


def test_newer_format_is_refused_with_its_number(tmp_path):
    folder = save(CheckpointStore(tmp_path), 1)
    edit(folder, format=2, shards="a field that this rlx does not know")
    with pytest.raises(UserError, match="has format 2, this rlx reads format 1"):
        find_checkpoint(folder)


def test_tensors_that_nobody_would_read_break_no_checkpoint(tmp_path):
    """Somebody has exported the model into the checkpoint's folder."""
    folder = save(CheckpointStore(tmp_path), 1)
    for place in ("hf", "actor/huggingface", "actor/weights/old"):
        (folder / place).mkdir(parents=True)
        (folder / place / "model.safetensors").touch()
    assert CheckpointStore(tmp_path).latest() == folder
    (folder / "actor" / "optimizer").mkdir()
    (folder / "actor" / "optimizer" / "more.safetensors").touch()
    assert faults(folder, read_manifest(folder)) == ["actor/optimizer/more.safetensors is not of this checkpoint"]


def test_a_file_that_goes_while_it_is_looked_at_is_named(tmp_path):
    folder = save(CheckpointStore(tmp_path), 1)
    (folder / "trainer.json").unlink()
    told = content_faults(folder, read_manifest(folder), ("",))
    assert told == ["trainer.json cannot be read (No such file or directory)"]


def test_find_takes_run_checkpoints_or_step(tmp_path):
    run = tmp_path / "run"
    store = CheckpointStore(run / "checkpoints")
    save(store, 9)
    save(store, 10)
    for source in (run, run / "checkpoints", run / "checkpoints/global_step_10", str(run)):
        assert find_checkpoint(source) == run / "checkpoints/global_step_10"
    assert find_checkpoint(run / "checkpoints/global_step_9") == run / "checkpoints/global_step_9"


def test_find_says_what_is_there_instead(tmp_path):
    """Case K19."""
    with pytest.raises(UserError, match="nowhere is not a folder"):
        find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(UserError, match="it holds nothing"):
        find_checkpoint(tmp_path)
    (tmp_path / "config.yaml").touch()
    (tmp_path / "old").mkdir()
    with pytest.raises(UserError, match=r"it holds config.yaml, old"):
        find_checkpoint(tmp_path)


def test_a_killed_save_is_cleared_or_finished(tmp_path):
    dead = multiprocessing.get_context("fork").Process(target=int)  # a process id that is free again
    dead.start()
    dead.join()
    store = CheckpointStore(tmp_path)
    save(store, 1)
    live = store.begin(4)

    def leave(step: int, sealed: bool) -> None:
        path = CheckpointStore(tmp_path).begin(step)
        (path / "trainer.json").write_text("{}")
        if sealed:
            shutil.copy(tmp_path / "global_step_1/manifest.json", path)
            manifest = json.loads((path / "manifest.json").read_text())
            manifest |= {"step": step, "serial": step}
            manifest["files"]["trainer.json"] = {"bytes": 2, "blake2b": checksum(path / "trainer.json")}
            (path / "manifest.json").write_text(json.dumps(manifest))
        path.rename(str(path).replace(f"-{multiprocessing.current_process().pid}-", f"-{dead.pid}-"))

    leave(2, sealed=False)
    leave(3, sealed=True)
    (tmp_path / ".trash-global_step_1-0123abcd").mkdir()
    store.recover()
    assert names(tmp_path) == {"global_step_1", "global_step_3", "latest", live.name}
    assert store.latest() == tmp_path / "global_step_3"
    assert (tmp_path / "latest").read_text().strip() == "global_step_3"


def test_undeletable_old_checkpoint_is_a_warning(tmp_path, caplog, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1)

    def refuse(path, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(shutil, "rmtree", refuse)
        save(store, 2)
        save(store, 3)
    assert store.latest() == tmp_path / "global_step_3"
    assert caplog.text.count("could not remove") == 2
    store.recover()
    assert names(tmp_path) == {"global_step_3", "latest"}


def _begin_at_once(folder: Path, barrier, results) -> None:
    barrier.wait()
    store = CheckpointStore(folder, keep=2)
    store.recover()
    results.put(store.begin(1).is_dir())


def test_eight_processes_make_the_folder_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(8), context.Queue()
    arguments = (tmp_path / "deep/er/checkpoints", barrier, results)
    processes = [context.Process(target=_begin_at_once, args=arguments) for _ in range(8)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [True] * 8
    for process in processes:
        process.join()
        assert process.exitcode == 0


def test_too_little_space_is_refused_before_writing(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    need = shutil.disk_usage(tmp_path).total * 2
    with pytest.raises(RunError, match=rf"checkpoint of step 2 needs {need:,} bytes, .* free \(.* missing\)"):
        store.begin(2, need_bytes=need)
    assert names(tmp_path) == {"global_step_1", "latest"}


def test_disk_full_while_tensors_are_written(small_disk):
    store = CheckpointStore(small_disk.folder, keep=1)
    with store.saving(1) as folder:
        save_role(folder / "actor", EngineState({"weight": torch.ones(100_000)}))
    small_disk.limit(500_000)
    with pytest.raises(RunError) as error, store.saving(2, need_bytes=600_000) as folder:
        small_disk.fill(left=450_000)  # by others, after space was looked for
        save_role(folder / "actor", EngineState({"weight": torch.ones(150_000)}))
    small_disk.free()
    assert names(store.folder) == {"global_step_1", "latest"}
    assert store.latest() == store.folder / "global_step_1"
    if small_disk.is_tmpfs:  # 0.6 MB beside 0.45 MB that are free
        assert "checkpoint of step 2: the disk of" in error.value.message
        missing = int(error.value.message.split("is full, ")[1].split(" bytes are missing")[0].replace(",", ""))
        assert 140_000 < missing < 180_000
    with store.saving(3) as folder:  # resumed after space was made
        save_role(folder / "actor", EngineState({"weight": torch.ones(100_000)}))
    assert names(store.folder) == {"global_step_3", "latest"}


def test_disk_full_at_other_files(small_disk):
    store = CheckpointStore(small_disk.folder)
    save(store, 1)
    small_disk.limit()
    says = r"(bytes are missing; earlier checkpoints are intact|File too large)"
    with pytest.raises(RunError, match=says), store.saving(2) as folder:
        (folder / "buffer.bin").write_bytes(bytes(2 * small_disk.size))
    assert names(store.folder) == {"global_step_1", "latest"}


def test_disk_full_at_the_manifest(small_disk):
    store = CheckpointStore(small_disk.folder)
    save(store, 1)
    folder = store.begin(2)
    if small_disk.is_tmpfs:
        with pytest.raises(OSError, match="No space left"), (folder / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
    small_disk.limit(64)
    with pytest.raises(RunError, match="checkpoint of step 2"):
        store.commit(2)
    assert names(store.folder) == {"global_step_1", "latest"}
    assert store.latest() == store.folder / "global_step_1"


def test_a_run_saved_by_one_process(tmp_path):
    folder = save_run(tmp_path, tiny_model(True))
    assert find_checkpoint(tmp_path) == folder
    assert {path.name for path in (folder / "actor").iterdir()} == {
        "weights",
        "optimizer",
        "engine.json",
        "huggingface",
    }
    assert json.loads((folder / "actor/engine.json").read_text())["scalars"] == engine_state(tiny_model(True)).scalars
