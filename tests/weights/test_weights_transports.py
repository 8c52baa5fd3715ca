"""Every transport between real processes: bits, versions, and what happens when one side fails."""

import json
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weights_engine import HERE, HoldingEngine, Weights, child, digests
from weights_made import FLOATING, SHAPES, changes, random_bits, special, tensors

from verl_core.config.errors import RunError, UserError
from verl_core.rollout.child import memory
from verl_core.rollout.child.shared_memory import SharedBuffer, opened
from verl_core.weights.broadcast import BroadcastSender
from verl_core.weights.delta.codec import bits
from verl_core.weights.delta.sender import DeltaSender
from verl_core.weights.disk import DiskSender
from verl_core.weights.inbox import Inbox
from verl_core.weights.ipc import IpcSender

KINDS = ["broadcast", "delta", "disk", "ipc"]


def sender(kind, engines, folder, timeout_s=20.0, verify=False):
    """With small buckets, so that tensors share them, spill over and are cut."""
    tells = [engine.call for engine in engines]
    options = {"verify": verify, "timeout_s": timeout_s}
    match kind:
        case "broadcast":
            return BroadcastSender(tells, device="cpu", bucket_bytes=1024, **options)
        case "delta":
            return DeltaSender(tells, device="cpu", bucket_bytes=1024, **options)
        case "disk":
            return DiskSender(tells, folder=folder, file_bytes=1024, **options)
        case "ipc":
            (tell,) = tells
            return IpcSender(tell, device="cpu", bucket_bytes=1024, **options)


@pytest.fixture(scope="module")
def copying():
    with child() as engine:
        yield engine


@pytest.fixture(scope="module")
def keeping():
    with child(keeps=True) as engine:
        yield engine


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=6)
def test_every_bit_arrives_at_every_version(kind, data, copying, keeping, tmp_path_factory):
    engines = [keeping if data.draw(st.booleans()) else copying] if kind == "ipc" else [copying, keeping]
    named = data.draw(tensors())
    trainer, push = Weights(named), sender(kind, engines, tmp_path_factory.mktemp("weights"), verify=True)
    for version in range(3, 6):
        push.send(trainer, version)
        for engine in engines:
            assert engine.call("digests").result() == digests(trainer.tensors.items())
            assert engine.call("weights_version").result() == {"version": version}
        trainer.tensors = data.draw(changes(trainer.tensors))
    push.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_special_value_shape_and_extent_of_change_arrives(kind, copying, tmp_path):
    """What the drawn examples above may miss, once for certain: special values in every floating dtype and odd shape,
    tied tensors, then no change, one element, and all of them."""
    first = {
        f"{dtype}{list(shape)}": torch.zeros(shape, dtype=dtype) for dtype in FLOATING for shape in SHAPES[:-1]
    } | {str(dtype): special(dtype) for dtype in FLOATING}
    first["tied"] = first["torch.bfloat16"]
    specials = {name: special(t.dtype).repeat(t.numel())[: t.numel()].view(t.shape) for name, t in first.items()}
    one = {name: t.clone() for name, t in specials.items()}
    one["torch.bfloat16[257, 9]"][200, 4] = 3.0
    everything = {name: bits(t).bitwise_not().view(t.dtype) for name, t in one.items()}
    push = sender(kind, [copying], tmp_path, verify=True)
    for version, named in enumerate([first, specials, specials, one, everything, first], start=11):
        named["tied"] = named["torch.bfloat16"]
        sent = push.send(Weights(named), version)
        assert copying.call("digests").result() == digests(named.items())
        if kind == "delta":
            changed = {13: 0, 14: 1, 15: sent.elements}.get(version, sent.changed)
            assert (sent.whole, sent.changed) == (version == 11, changed)
    push.close()


@pytest.mark.parametrize("kind", KINDS)
def test_floating_weights_travel_in_the_engines_dtype(kind, copying, tmp_path):
    trainer = Weights({"w": torch.randn(50, 7), "n": torch.arange(5)})
    tells = [copying.call]
    match kind:
        case "broadcast" | "delta":
            push = {"broadcast": BroadcastSender, "delta": DeltaSender}[kind](tells, device="cpu", dtype=torch.bfloat16)
        case "disk":
            push = DiskSender(tells, folder=tmp_path, dtype=torch.bfloat16)
        case "ipc":
            push = IpcSender(copying.call, device="cpu", dtype=torch.bfloat16)
    for version in (1, 2):
        push.send(trainer, version)
        want = {"w": trainer.tensors["w"].bfloat16(), "n": trainer.tensors["n"]}
        assert copying.call("digests").result() == digests(want.items())
        trainer.tensors["w"] += 1e-3
    push.close()


TWO = {"a": random_bits((300,), torch.bfloat16, 1), "b": random_bits((40, 30), torch.float32, 2)}


@contextmanager
def faulty(engine, fault):
    engine.call("set_fault", fault).result()
    yield
    engine.call("set_fault", None).result()


@pytest.mark.parametrize("kind", KINDS)
def test_verify_names_the_tensor_that_the_engine_holds_differently(kind, copying, tmp_path):
    push = sender(kind, [copying], tmp_path, verify=True)
    push.send(Weights(TWO), 1)
    wrong = pytest.raises(RunError, match=r"version 2 .*holds other bytes than were sent: b; .*no version whole")
    with faulty(copying, "alter"), wrong:
        push.send(Weights(TWO), 2)
    assert copying.call("weights_version").result() == {"version": None}


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_reaches_the_trainer_and_the_next_transfer_is_whole(kind, copying, keeping, tmp_path):
    engines = [copying] if kind == "ipc" else [copying, keeping]
    push = sender(kind, engines, tmp_path)
    push.send(Weights(TWO), 1)
    refused = pytest.raises(
        RunError, match=r"version 2 did not arrive whole: KeyError: .*weight 'b' is not a parameter"
    )
    with faulty(copying, "refuse"), refused:
        push.send(Weights(TWO), 2)
    push.close()
    again = sender(kind, engines, tmp_path)
    assert again.send(Weights(TWO), 3).whole
    assert [e.call("digests").result() for e in engines] == [digests(TWO.items())] * len(engines)
    again.close()


@pytest.mark.parametrize("kind", ["broadcast", "delta", "ipc", pytest.param("disk", marks=pytest.mark.slow)])
def test_an_engine_killed_in_a_transfer_is_an_error_at_once(kind, tmp_path):
    with child() as engine:
        engine.call("set_fault", "die").result()
        push = sender(kind, [engine], tmp_path, timeout_s=30.0)
        push.send(Weights(TWO), 1)
        start = time.monotonic()
        with pytest.raises(RunError, match="SIGKILL"):
            push.send(Weights(TWO), 2)
        assert time.monotonic() - start < 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_that_hangs_is_an_error_in_bounded_time(kind, tmp_path):
    with child() as engine:
        engine.call("set_fault", "sleep").result()
        sender(kind, [engine], tmp_path, timeout_s=60.0).close()  # its process imports what the transport needs
        push = sender(kind, [engine], tmp_path, timeout_s=5.0)
        push.send(Weights(TWO), 1)
        start = time.monotonic()
        with pytest.raises(RunError):
            push.send(Weights(TWO), 2)
        assert time.monotonic() - start < 30  # it sleeps for 60


class Broken(Weights):
    def named_weights(self):
        yield from []
        raise ValueError("no more memory")

    named_shards = named_weights


@pytest.mark.parametrize("kind", KINDS)
def test_a_trainer_that_fails_before_its_first_tensor_leaves_the_engine_as_it_was(kind, copying, tmp_path):
    push = sender(kind, [copying], tmp_path)
    push.send(Weights(TWO), 1)
    with pytest.raises((ValueError, RunError), match="no more memory"):
        push.send(Broken(TWO), 2)
    assert copying.call("weights_version").result() == {"version": 1}
    assert copying.call("digests").result() == digests(TWO.items())


@pytest.mark.parametrize("kind", ["broadcast", "delta", "ipc"])  # to the disk it writes nothing
def test_an_engine_that_keeps_tensors_where_they_lie_then_says_that_it_holds_none(kind, keeping, tmp_path):
    """It stands still, and has forgotten the last version, before the first tensor is overwritten."""
    push = sender(kind, [keeping], tmp_path)
    push.send(Weights(TWO), 1)
    with pytest.raises((ValueError, RunError), match="no more memory"):
        push.send(Broken(TWO), 2)
    assert keeping.call("weights_version").result() == {"version": None}
    again = sender(kind, [keeping], tmp_path)
    assert again.send(Weights(TWO), 3).whole
    assert keeping.call("digests").result() == digests(TWO.items())
    again.close()


def test_a_trainer_that_is_killed_leaves_no_engine_waiting():
    """The sender runs in a process of its own and dies at its second tensor; its words come over a pipe."""
    trainer = subprocess.Popen(
        [sys.executable, str(HERE / "weights_dying_trainer.py")], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert trainer.stdout and trainer.stdin
    inbox = Inbox(HoldingEngine(keeps=False), device="cpu")
    inbox.weights_open(**json.loads(trainer.stdout.readline()))
    trainer.stdin.write(b"opened\n")
    trainer.stdin.flush()
    start = time.monotonic()
    with pytest.raises(RunError, match=r"version 1 did not arrive whole.*; the engine holds"):
        inbox.weights_take(**json.loads(trainer.stdout.readline()))
    assert time.monotonic() - start < 20
    trainer.wait()
    trainer.stdout.close()
    trainer.stdin.close()


def test_nothing_is_sent_twice_where_nothing_changed(copying, tmp_path):
    push = sender("delta", [copying], tmp_path)
    first, second = push.send(Weights(TWO), 1), push.send(Weights(TWO), 2)
    assert (first.whole, second.whole, second.changed, second.elements) == (True, False, 0, 1500)
    assert second.bytes < first.bytes / 10
    push.close()


def test_changes_against_another_version_are_refused_and_all_weights_come_instead(copying, tmp_path):
    push = sender("delta", [copying], tmp_path)
    push.send(Weights(TWO), 1)
    wrong = {"version": 9, "base": 5, "whole": False, "verify": False}
    with pytest.raises(RunError, match="against version 5 came to a copy of version 1; the engine holds version 1"):
        copying.call("weights_take", **wrong).result()
    push._version = 5  # as if the engine had come back with an older one
    assert push.send(Weights(TWO), 6).whole
    assert copying.call("digests").result() == digests(TWO.items())
    push.close()


def test_an_engine_that_cannot_say_what_it_holds_is_sent_everything(copying, tmp_path):
    """Nothing may be raised before the transfer: the other ranks of the trainer have begun with it by then."""
    push = sender("delta", [copying], tmp_path)
    push.send(Weights(TWO), 1)

    def silent(method, **message):
        if method != "weights_version":
            return copying.call(method, **message)
        answer = Future()
        answer.set_exception(RunError("no answer"))
        return answer

    push._tells = [silent]
    assert push.send(Weights(TWO), 2).whole
    push.close()


def test_old_versions_leave_the_disk_and_others_files_stay(copying, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    push = sender("disk", [copying], tmp_path)
    for version in (1, 2, 3):
        push.send(Weights(TWO), version)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "version_3"]


def test_a_folder_that_cannot_be_made_is_the_users(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"weights\.folder=.*/file cannot be made: File exists"):
        DiskSender([lambda *_, **__: None], folder=tmp_path / "file")


def test_a_version_that_cannot_be_written_is_an_error_and_leaves_nothing(copying, tmp_path):
    (tmp_path / ".partial_8").mkdir()  # of a trainer that was killed
    push = sender("disk", [copying], tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(RunError, match=r"version 1 could not be written below .*too large"):
            push.send(Weights(TWO), 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
    push.send(Weights(TWO), 1)


def test_a_manifest_may_come_late_and_sizes_are_checked(tmp_path):
    done: Future = Future()
    done.set_result({})
    told: dict = {}

    def tell(method, **message):
        told.update(message)
        return done

    DiskSender([tell], folder=tmp_path).send(Weights(TWO), 1)
    place, writer = tmp_path / "version_1", told["writer"]
    inbox = Inbox(engine := HoldingEngine(keeps=False), device="cpu")
    inbox.weights_open("disk", timeout_s=5)
    hidden = place.rename(tmp_path / "hidden")
    later = threading.Timer(0.3, lambda: hidden.rename(place))
    later.start()
    assert inbox.weights_take(1, folder=str(place), writer=writer) == {"version": 1}
    assert engine.digests() == digests(TWO.items())
    file = next(place.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"bytes, its manifest says .*; the engine holds version 1"):
        inbox.weights_take(1, folder=str(place), writer=writer)


def test_shared_buckets_lie_in_memory_without_a_name(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "MEMORY", tmp_path)
    buffer = SharedBuffer(torch.device("cpu"), 4096)
    buffer.tensor.fill_(7)
    there = opened(buffer.handle, torch.device("cpu"))
    assert Path(buffer.handle["path"]).readlink().parent == tmp_path and not list(tmp_path.iterdir())
    buffer.forget()
    there[0] = 9
    assert buffer.tensor.tolist() == [9] + [7] * 4095


def test_an_engine_that_cannot_be_opened_is_an_error_at_once(tmp_path):
    failed: Future = Future()
    failed.set_exception(RunError("the engine ended with exit code 1"))
    start = time.monotonic()
    for kind in (BroadcastSender, DeltaSender):
        with pytest.raises(RunError, match="exit code 1"):
            kind([lambda method, **_: failed], device="cpu", timeout_s=30)
    assert time.monotonic() - start < 20
