"""An object store that refuses, is lost in the middle of a save, or whose writer is killed: one line each, and the last
whole checkpoint stays."""

import logging
import random
import subprocess
import sys
import time

import pytest

from rlx.run_checkpoints import checkpoints_of
from tests.conftest import command_variables
from tests.support.object_stores import GOOGLE_REFUSES, ObjectServer, gcs, refusing, s3
from verl_core.checkpoint import find_checkpoint
from verl_core.checkpoint.inspect import inspect
from verl_core.checkpoint.object_store import ObjectStore
from verl_core.checkpoint.objects import ObjectPath
from verl_core.config.errors import EnvError, RunError, UserError

WRITER = """
import sys
from verl_core.checkpoint.object_store import ObjectStore
from verl_core.checkpoint.objects import ObjectPath

store = ObjectStore(ObjectPath(sys.argv[1]), keep=2)
store.claim(resume=True)
store.recover()
newest = store.latest()
step = int((newest / "trainer.json").read_text()) if newest else 0
while True:
    step += 1
    folder = store.begin(step)
    for rank in range(3):
        with (folder / f"actor/weights/{rank}").writing() as file:
            file.write(str(step).encode() * 100_000)
    (folder / "trainer.json").write_text(str(step))
    store.commit(step)
    print(step, flush=True)
"""


def kill_many_times(place: ObjectPath, kills: int, seed: int) -> None:
    """kill -9 at random moments of a loop that saves, so often and until one has hit a save: nothing committed is lost,
    nothing cut off is taken."""
    draw, committed, interrupted = random.Random(seed), 0, 0
    while kills > 0 or not interrupted:
        kills -= 1
        words = [sys.executable, "-c", WRITER, str(place)]
        writer = subprocess.Popen(words, env=command_variables({}), stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None and writer.stdout.readline(), "the writer ended by itself"
        time.sleep(draw.uniform(0, 0.6))
        writer.kill()
        reported = [int(line) for line in writer.stdout.read().splitlines()] or [committed + 1]
        writer.wait()
        newest = ObjectStore(place).latest()
        assert newest is not None
        step = int((newest / "trainer.json").read_text())
        assert newest.name == f"global_step_{step}" and step >= reported[-1] > committed
        assert (newest / "actor/weights/2").read_text() == str(step) * 100_000
        interrupted += any(name.endswith("/unfinished.json") for name in place.sizes())
        committed = step
    ObjectStore(place).recover()
    steps = [found.step for found in inspect(place)]
    assert steps[-1] == committed and all(found.whole for found in inspect(place))
    assert {name.partition("/")[0] for name in place.sizes()} == {
        "latest",
        "writer.json",
        *(f"global_step_{step}" for step in steps),
    }


def test_kill_in_the_middle_of_saves(s3):
    """Case K13."""
    kill_many_times(ObjectPath(f"{s3.url}/killed"), kills=1, seed=3)


@pytest.mark.slow
def test_kill_in_the_middle_of_many_saves(s3):
    kill_many_times(ObjectPath(f"{s3.url}/killed-often"), kills=10, seed=0)


def test_a_connection_lost_in_the_middle_of_a_save(monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # of each request, beside those of s3fs
    with s3() as server, server.reached():
        store = ObjectStore(ObjectPath(f"{server.url}/run"))
        folder = store.begin(1)
        (folder / "trainer.json").write_text("{}")
        server.stop()
        with (
            pytest.raises(RunError, match=r"global_step_1/weights cannot be used: EndpointConnectionError"),
            store.clearing_up(1),
        ):
            (folder / "weights").write_text("w")


@pytest.mark.parametrize(
    ("url", "without", "kind", "said"),
    [
        ("s3://nobucket/x", (), UserError, "there is no s3://nobucket"),
        ("zz://bucket/x", (), UserError, "zz://bucket/x: fsspec knows no such protocol"),
        ("s3://checkpoints/x", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), UserError, "no credentials"),
        ("abfs://container/x", (), EnvError, "needs a package that is not here: .*adlfs"),
    ],
)
def test_what_a_store_refuses_at_the_start(s3: ObjectServer, monkeypatch, url, without, kind, said):
    for name in without:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nowhere")  # no ~/.aws
    with pytest.raises(kind, match=said) as refused:
        ObjectStore(ObjectPath(url)).claim(resume=False)
    assert refused.value.hint and "\n" not in refused.value.message


@pytest.mark.parametrize("asked", [checkpoints_of, find_checkpoint])
def test_a_bucket_that_is_not_there_is_no_empty_folder(s3: ObjectServer, asked):
    with pytest.raises(UserError, match=r"^there is no s3://nobucket$"):
        asked("s3://nobucket/a/run")
    with gcs() as server, server.reached(), pytest.raises(UserError, match=r"^there is no gs://nobucket$"):
        asked("gs://nobucket/a/run")


@pytest.mark.parametrize(
    ("protocol", "status", "said"),
    [("s3", 403, "Access Denied"), ("gs", 401, GOOGLE_REFUSES), ("gs", 403, "Forbidden")],
)
def test_credentials_that_are_refused_are_told_as_that(protocol, status, said, capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger("gcsfs"), "propagate", False)  # to pytest, in silence
    with (
        refusing(protocol, status) as server,
        server.reached(),
        pytest.raises(UserError, match="access is denied: ") as refused,
    ):
        checkpoints_of(f"{server.url}/run")
    assert said in refused.value.message and refused.value.hint
    assert capfd.readouterr().err == ""


def test_a_source_with_credentials_is_refused_without_showing_them():
    with pytest.raises(UserError, match="credentials do not belong in a URL") as refused:
        find_checkpoint("s3://key:secret@bucket/x")
    assert "secret" not in f"{refused.value.message} {refused.value.hint}"


def test_a_missing_package_is_named_with_its_extra(s3: ObjectServer, monkeypatch):
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(EnvError, match="s3fs") as refused:
        ObjectStore(ObjectPath(f"{s3.url}/x")).claim(resume=False)
    assert "--extra s3" in refused.value.hint
