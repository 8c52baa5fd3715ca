"""Checkpoints on an object store: whole or absent without a rename, retention, leftovers, several writers, bytes."""

import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from checkpoint_models import engine_state, on_ranks, sharded, tiny_model

from tests.support.object_stores import ObjectServer, gcs
from verl_core.checkpoint import CheckpointStore, find_checkpoint, load_role, save_role
from verl_core.checkpoint.inspect import UNFINISHED, inspect
from verl_core.checkpoint.lease import Lease
from verl_core.checkpoint.manifest import content_faults, read_manifest
from verl_core.checkpoint.object_store import ObjectStore
from verl_core.checkpoint.objects import ObjectPath
from verl_core.checkpoint.owner import host
from verl_core.checkpoint.place import claimed
from verl_core.checkpoint.retention import Retention
from verl_core.checkpoint.shards import Shards
from verl_core.config.errors import RunError, UserError
from verl_core.config.schema_trainer import TrainerConfig
from verl_core.controller.eval_source import Candidate
from verl_core.tracking.records import RunRecords
from verl_core.training.protocol import EngineState


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[ObjectServer]:
    with gcs() as server:
        yield server


@pytest.fixture(params=["s3", "gcs"])
def server(request: pytest.FixtureRequest) -> Iterator[ObjectServer]:
    found: ObjectServer = request.getfixturevalue(f"{request.param}_server")
    with found.reached():
        yield found


@pytest.fixture
def place(s3: ObjectServer, request: pytest.FixtureRequest) -> ObjectPath:
    return ObjectPath(f"{s3.url}/{request.node.name}")


def save(store: ObjectStore, step: int, value: float | None = None, text: str = "x") -> ObjectPath:
    folder = store.begin(step)
    (folder / "trainer.json").write_text(json.dumps(text))
    return store.commit(step, value)


def steps(place: ObjectPath) -> list[int]:
    return [found.step for found in inspect(place) if found.whole]


def test_what_is_saved_is_found_and_loaded(server, request, tmp_path, monkeypatch):
    store = ObjectStore(ObjectPath(f"{server.url}/{request.node.name}"))
    state = engine_state(tiny_model(tied=True))
    folder = store.begin(1)
    save_role(ObjectPath(str(folder)) / "actor", state)  # another process's view of the folder
    own = ObjectPath(str(folder))
    save_role(own / "actor", state)
    (folder / "trainer.json").write_text("{}")
    assert store.latest() is None and inspect(store.folder) == []
    found = store.commit(1, pieces=own.written)
    assert store.latest() == found == store.folder / "global_step_1"
    assert (store.folder / "latest").read_text().strip() == "global_step_1"
    manifest = read_manifest(found)
    assert manifest.roles == {"actor": 1} and set(found.sizes()) == {*manifest.files, "manifest.json"}
    assert content_faults(found, manifest, ("",)) == []

    like = engine_state(tiny_model(tied=True, seed=5), seed=6)
    loaded = load_role(found / "actor", like)
    assert all(torch.equal(loaded.weights[name], value) for name, value in state.weights.items())
    assert all(torch.equal(loaded.optimizer[name], value) for name, value in state.optimizer.items())
    assert loaded.scalars == state.scalars

    left, others = (tmp_path / f"rlx-copy-{at}-4194305-x" for at in (host(), "elsewhere"))  # no process has that number
    left.mkdir(), others.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    copy = find_checkpoint(str(store.folder), ("actor/weights/",))
    assert others.exists() and not left.exists()  # a killed process's
    assert copy.name == "global_step_1" and not (copy / "actor" / "optimizer").exists()
    weights = Shards(copy / "actor" / "weights")
    assert set(weights.names) == set(Shards(found / "actor" / "weights").names)


def write_sharded(url: str) -> None:
    """This rank's share of the checkpoint of two."""
    save_role(f"{url}/actor", sharded(engine_state(tiny_model(tied=False))))


@pytest.mark.slow
def test_what_two_ranks_write_one_reads(place):
    on_ranks(2, write_sharded, str(place))
    state = engine_state(tiny_model(tied=False))
    assert len([name for name in place.sizes() if name.startswith("actor/weights/")]) == 2
    loaded = load_role(place / "actor", engine_state(tiny_model(tied=False, seed=5), seed=6))
    assert all(torch.equal(loaded.weights[name], value) for name, value in state.weights.items())
    assert all(torch.equal(loaded.optimizer[name], value) for name, value in state.optimizer.items())


def test_rows_are_read_by_their_bytes(place):
    state = EngineState({"a": torch.arange(60.0).reshape(10, 6), "scalar": torch.tensor(7)}, {}, {})
    save_role(place / "actor", state)
    shards = Shards(place / "actor" / "weights")
    assert torch.equal(shards.rows("a", 3, 8), state.weights["a"][3:8])
    assert shards.rows("a", 4, 4).shape == (0, 6)
    assert shards.rows("scalar", 0, 1) == 7
    part = shards._part("a", shards.tensors["a"].chunks[0], (slice(2, 5), slice(1, 3)))
    assert torch.equal(part, state.weights["a"][2:5, 1:3])


def test_old_ones_go_and_what_others_put_there_stays(place):
    foreign = ["notes.txt", "global_step_1/mine.txt", "global_step_4/mine.txt", "global_step_11/mine.txt", "best/x"]
    for name in foreign:
        (place / name).write_text("mine")
    for step, value in ((1, 0.9), (2, 0.1), (3, 0.2), (4, 0.3)):  # a new store each time: a resumed run
        save(ObjectStore(place, Retention(1, "val", "max")), step, value)
    assert steps(place) == [1, 4]
    save(ObjectStore(place, 1), 5)
    assert steps(place) == [5]
    assert {name for name in place.sizes() if not name.startswith("global_step_5/")} == {*foreign, "latest"}


def test_an_earlier_step_is_saved_again(place):
    store = ObjectStore(place)
    save(store, 1, text="old")
    with pytest.raises(RunError, match="the only whole one"):
        store.begin(1)
    save(store, 2)
    found = save(store, 1, text="new")
    assert store.latest() == found and (found / "trainer.json").read_text() == '"new"'


def test_a_run_that_saved_elsewhere_is_not_begun_again(place, tmp_path):
    here = TrainerConfig(project_name="p", experiment_name="a")
    there = replace(here, checkpoint_url=place.url)
    run = tmp_path / "p" / "a"

    def start(trainer: TrainerConfig) -> None:
        with claimed(trainer, run, resume=True):
            pass

    with CheckpointStore(run / "checkpoints").saving(1):
        pass
    with pytest.raises(UserError, match=rf"{place}/p/a has no checkpoint; the run saved to {run}/checkpoints"):
        start(there)
    save(ObjectStore(place / "p" / "a"), 1)
    start(there)  # somebody has copied them

    shutil.rmtree(run / "checkpoints")
    RunRecords(run).start({}, checkpoints=f"{place}/p/a")
    with pytest.raises(UserError, match=f"has no checkpoint; the run saved to {place}/p/a") as refused:
        start(here)
    assert f"go on with trainer.checkpoint_url={place}, or copy" in refused.value.hint
    with CheckpointStore(run / "checkpoints").saving(1):
        pass
    start(here)


def test_an_evaluation_names_the_checkpoint_that_it_has_a_copy_of(tmp_path):
    url = "s3://bucket/p/a/global_step_4"
    (tmp_path / "run.json").write_text(json.dumps({"checkpoints": "s3://bucket/p/a"}))
    for source in (url, "s3://bucket/p/a", str(tmp_path)):
        assert Candidate(source, tmp_path / "copy/global_step_4", None, None, [], {}).place == url
    own = tmp_path / "global_step_4"
    assert Candidate(str(own), own, None, None, [], {}).place == str(own)


def test_a_step_whose_manifest_is_unreadable_is_saved_again(place):
    store = ObjectStore(place)
    save(store, 1)
    (save(store, 2) / "manifest.json").write_text("{")
    found = save(store, 2, text="new")
    assert store.latest() == found and set(found.sizes()) == {"trainer.json", "manifest.json"}


def test_leftovers_are_no_checkpoints_and_go(place, caplog):
    store = ObjectStore(place)
    save(store, 1)
    for step in (2, 3):
        (store.begin(step) / "actor" / "weights.bin").write_text("cut off here")
    (ObjectPath(str(place / "global_step_9")) / "other.txt").write_text("not of rlx")
    assert store.latest() == place / "global_step_1"
    next_run = ObjectStore(place)
    save(next_run, 2)  # the same step first, the others when a run starts
    assert set((place / "global_step_2").sizes()) == {"trainer.json", "manifest.json"}
    next_run.recover()
    assert (place / "global_step_3").sizes() == {} and (place / "global_step_9").sizes() == {"other.txt": 10}
    caplog.set_level(logging.WARNING)
    assert next_run.latest() == place / "global_step_2" and "global_step_9" in caplog.text


def test_what_somebody_has_edited_is_told_and_not_removed(place):
    store = ObjectStore(place)
    for text in ("", "[]", '{"foreign": 1}'):
        (place / "global_step_1" / UNFINISHED).write_text(text)
        (place / "global_step_1" / "mine.txt").write_text("mine")
        with pytest.raises(RunError, match=r"global_step_1/unfinished\.json is unreadable"):
            store.recover()
    (place / "global_step_1").delete([UNFINISHED])
    (place / "global_step_1" / "actor" / "weights" / "more.safetensors").write_text("mine")
    with pytest.raises(RunError, match="is not of this checkpoint") as refused:
        save(store, 1)
    assert "remove what is not of rlx there" in refused.value.hint
    assert set((place / "global_step_1").sizes()) == {"mine.txt", "actor/weights/more.safetensors", UNFINISHED}
    (place / "writer.json").write_text("[]")
    with pytest.raises(RunError, match=r"taken over by another run \(writer\.json is unreadable\)"):
        store.begin(2)


def test_a_removal_that_was_cut_off_is_finished(place):
    """Case K13, of a removal."""
    store = ObjectStore(place)
    save(store, 1)
    save(store, 2)
    (place / "global_step_1" / UNFINISHED).write_text(json.dumps({"foreign": []}))
    assert steps(place) == [1, 2]  # it had not gone beyond its mark
    (place / "global_step_1").delete(["manifest.json"])
    assert [found.step for found in inspect(place)] == [2]
    (place / "global_step_2" / UNFINISHED).write_text(json.dumps({"foreign": []}))  # a save but for its last request
    store.recover()
    assert steps(place) == [2] and UNFINISHED not in (place / "global_step_2").sizes()
    assert (place / "global_step_1").sizes() == {}


def test_a_failed_save_leaves_nothing(place):
    store = ObjectStore(place, keep=1)
    save(store, 1)
    with pytest.raises(ValueError, match="boom"), store.saving(2) as folder:
        (folder / "trainer.json").write_text("{}")
        with (folder / "weights").writing() as file:
            file.write(b"1")
            raise ValueError("boom")
    assert steps(place) == [1] and set((place / "global_step_2").sizes()) == {UNFINISHED}
    (ObjectPath(str(place / "global_step_2")) / "late").write_text("of a rank that went on")
    (store.begin(2) / "trainer.json").write_text("{}")
    (ObjectPath(str(place / "global_step_2")) / "later").write_text("of another")
    assert set(store.commit(2).sizes()) == {"trainer.json", "manifest.json"}
    folder = store.begin(3)
    (folder / "trainer.json").write_text("{}")
    ObjectPath(str(folder)).delete(["trainer.json"])
    with pytest.raises(RunError, match=r"is not what was written: trainer\.json is missing"):
        store.commit(3)
    assert steps(place) == [2] and set((place / "global_step_3").sizes()) == {UNFINISHED}


def test_a_lost_object_is_named_and_passed_over(place, caplog):
    store = ObjectStore(place)
    save(store, 1)
    (save(store, 2)).delete(["trainer.json"])
    assert store.latest() == place / "global_step_1"
    assert "trainer.json is missing" in caplog.text
    with pytest.raises(UserError, match=r"global_step_2 is not a whole checkpoint: trainer\.json is missing"):
        find_checkpoint(str(place / "global_step_2"))
    with pytest.raises(UserError, match=r"there is nothing at s3://.*/nowhere"):
        find_checkpoint(str(place / "nowhere"))
    (ObjectPath(str(place / "global_step_1")) / "trainer.json").write_text('"y"')
    with pytest.raises(UserError, match=r"trainer\.json is damaged"):
        find_checkpoint(str(place / "global_step_1"))


def test_two_runs_with_one_place(place):
    first = ObjectStore(place, lease=Lease(place, "one"))
    second = ObjectStore(place, lease=Lease(place, "two", silent_s=0))
    first.claim(resume=False)
    save(first, 1)
    with pytest.raises(UserError, match="holds checkpoints of another run: global_step_1"):
        second.claim(resume=False)
    folder = first.begin(2)
    (folder / "trainer.json").write_text("{}")
    second.claim(resume=True)
    with pytest.raises(RunError, match=r"taken over by another run \(two\)"):
        first.commit(2)
    assert steps(place) == [1] and "trainer.json" in (place / "global_step_2").sizes()  # it may be the other's
    save(second, 2)
    with pytest.raises(RunError, match="taken over"):
        first.begin(3)
