"""Which run may write at a place of an object store: one at a time, the next when that has ended or is silent."""

import json
import logging
import re
import subprocess
import sys
import threading
import time

import pytest

from tests.conftest import command_variables
from tests.support.object_stores import ObjectServer
from verl_core.checkpoint import lease
from verl_core.checkpoint.inspect import inspect
from verl_core.checkpoint.lease import LEASE, Lease
from verl_core.checkpoint.object_store import ObjectStore
from verl_core.checkpoint.objects import ObjectPath
from verl_core.config.errors import RunError, UserError

TAKES_AND_DIES = """
import os, sys
from verl_core.checkpoint.lease import Lease
from verl_core.checkpoint.objects import ObjectPath

Lease(ObjectPath(sys.argv[1])).take()
os._exit(9)
"""


@pytest.fixture
def place(s3: ObjectServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    monkeypatch.setattr(lease, "SETTLE_S", 0)
    return ObjectPath(f"{s3.url}/{request.node.name}")


def save(store: ObjectStore, step: int) -> None:
    (store.begin(step) / "trainer.json").write_text("{}")
    store.commit(step)


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_at_work_keeps_its_place(place, resume):
    first = Lease(place, "one", renew_s=0.02)
    second = ObjectStore(place, lease=Lease(place, "two", silent_s=60))
    first.take()
    with first.renewed():
        with pytest.raises(UserError, match=re.escape(f"another run is at work at {place}: one")) as refused:
            second.claim(resume)
        assert "trainer.experiment_name" in refused.value.hint
        save(ObjectStore(place, lease=first), 1)
    began = time.monotonic()
    second.claim(resume=True)  # at once: it has said that it ended
    assert time.monotonic() - began < 30 and first.other() == "two"


def test_one_that_ends_while_it_is_looked_at_is_followed(place, monkeypatch):
    first = Lease(place, "one")
    first.take()
    monkeypatch.setattr(lease, "sleep", lambda _: first.other() or first._write(ended=True))
    Lease(place, "two", silent_s=60).take()
    assert first.other() == "two"


def test_one_that_was_killed_here_is_not_waited_for(place):
    words = [sys.executable, "-c", TAKES_AND_DIES, str(place)]
    assert subprocess.run(words, env=command_variables({}), check=False).returncode == 9
    left = json.loads((place / LEASE).read_text())
    began = time.monotonic()
    Lease(place, "two", silent_s=60).take()
    assert not left["ended"] and time.monotonic() - began < 30


def test_one_that_is_silent_elsewhere_is_followed_and_finds_out(place, caplog):
    caplog.set_level(logging.WARNING)
    lost = Lease(place, "one", renew_s=0.02)
    lost.take()
    kept = json.loads((place / LEASE).read_text())
    (place / LEASE).write_text(json.dumps(kept | {"machine": "another", "pid": 1}))
    store = ObjectStore(place, keep=1, lease=lost)
    save(store, 1)
    (store.begin(2) / "trainer.json").write_text("{}")
    Lease(place, "two", silent_s=0.05).take()
    assert "looking for 0 s whether one is at work" in caplog.text
    with lost.renewed():
        while "has been taken over by two" not in caplog.text:
            time.sleep(0.01)
    assert json.loads((place / LEASE).read_text())["writer"] == "two"  # neither a renewal nor its end has replaced it
    with pytest.raises(RunError, match=r"taken over by another run \(two\)"):
        store.commit(2)


def test_what_another_run_has_saved_meanwhile_is_not_removed(place, monkeypatch, caplog):
    """A process that was stopped between the commit and the removal of old checkpoints, and goes on later."""
    first = ObjectStore(place, keep=1, lease=Lease(place, "one"))
    first.lease.take()
    save(first, 1)
    (first.begin(2) / "trainer.json").write_text("{}")

    def meanwhile(name: str) -> None:
        second = ObjectStore(place, lease=Lease(place, "two", silent_s=0))
        second.claim(resume=True)
        save(second, 3)

    monkeypatch.setattr(first, "_point_to", meanwhile)
    first.commit(2)
    assert [found.step for found in inspect(place) if found.whole] == [1, 2, 3]
    assert "old checkpoints stay" in caplog.text


def test_of_two_at_one_moment_one_goes_on(place, monkeypatch):
    both = threading.Barrier(2)
    monkeypatch.setattr(lease, "sleep", lambda _: both.wait(timeout=60))  # until both have written
    told: dict[str, str | None] = {}

    def take(name: str) -> None:
        try:
            Lease(place, name).take()
            told[name] = None
        except UserError as error:
            told[name] = error.message

    threads = [threading.Thread(target=take, args=(name,)) for name in ("one", "two")]
    monkeypatch.setattr(Lease, "_holder", lambda self: None)  # both have looked before either wrote
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = json.loads((place / LEASE).read_text())["writer"]
    loser = ({"one", "two"} - {winner}).pop()
    assert told[winner] is None and f"another run is at work at {place}: {winner}" in told[loser]
