"""`rlx runs` of a run whose checkpoints are on an object store: what is there, and where it is read."""

import json
import sys
from pathlib import Path

import pytest

from rlx import jobs, run_checkpoints
from rlx.env import launch
from tests.support.object_stores import ObjectServer
from verl_core.checkpoint.object_store import ObjectStore
from verl_core.checkpoint.objects import ObjectPath

RUN = "runs/demo/a-1"


@pytest.fixture
def url(s3: ObjectServer, tmp_path: Path) -> str:
    """The place of a run with two checkpoints, whose directory names it."""
    url = f"{s3.url}/{tmp_path.name}/demo/a-1"
    (tmp_path / RUN).mkdir(parents=True)
    (tmp_path / RUN / "run.json").write_text(json.dumps({"checkpoints": url}))
    store = ObjectStore(ObjectPath(url))
    for step in (1, 2):
        (store.begin(step) / "trainer.json").write_text("{}")
        store.commit(step)
    return url


def test_a_run_and_its_url_tell_the_same(rlx, url):
    told = rlx("runs", "verify", RUN, "--checksums", "--json")
    assert told.returncode == 0, told.stderr
    assert [c["path"] for c in json.loads(told.stdout)] == [f"{url}/global_step_{step}" for step in (1, 2)]
    (ObjectPath(url) / "global_step_2").delete(["trainer.json"])
    broken = rlx("runs", "verify", url)
    assert broken.returncode == 1 and "global_step_2, is broken: trainer.json is missing" in broken.stderr


def test_a_url_is_no_run_directory(rlx):
    shown = rlx("runs", "show", "s3://bucket/run")
    assert shown.returncode == 1 and "hint: rlx runs verify s3://bucket/run" in shown.stderr


def test_a_store_that_cannot_be_reached_hides_no_run(rlx, url):
    away = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"}
    listed = rlx("runs", "ls", "--json", env=away)
    assert listed.returncode == 0 and [run["run"] for run in json.loads(listed.stdout)] == [RUN]
    assert "cannot be used" in listed.stderr
    asked = rlx("runs", "verify", RUN, env=away)
    assert asked.returncode == 1 and "hint: look at the network" in asked.stderr


@pytest.fixture
def went(monkeypatch) -> list[tuple[Path, str, list[str]]]:
    """Interpreter, job and words of each process that `rlx runs ls` would become."""
    went: list[tuple[Path, str, list[str]]] = []
    monkeypatch.setattr(launch, "run_in", lambda python, job, words, threads: went.append((python, job, words)))
    monkeypatch.setattr(launch, "python_for", lambda extras, uses_gpu: Path("/environment/of") / "+".join(extras))
    monkeypatch.setattr(sys, "argv", ["rlx", "runs", "ls"])
    return went


def test_the_command_goes_on_where_the_package_is(monkeypatch, went):
    jobs.with_packages({"s3"})
    jobs.with_packages(())
    assert went == []
    monkeypatch.setitem(jobs._PACKAGES, "s3", "no_such_module")
    jobs.with_packages({"s3"})
    assert [words for _, _, words in went] == [["runs", "ls"]] and went[0][0].name.endswith("s3")


def test_runs_on_two_stores_are_read_in_one_environment(monkeypatch, went, tmp_path):
    for name, url in (("a", "s3://bucket/a"), ("b", "gs://bucket/b"), ("c", None)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"checkpoints": url}))
    monkeypatch.setattr(jobs, "_PACKAGES", {"s3": "no_such_module", "gcs": "no_such_module_either"})
    run_checkpoints.reach(tmp_path / name for name in "abc")
    assert [python.name.removeprefix("fsdp+") for python, _, _ in went] == ["gcs+s3"]
