"""The courier between a trainer and engines in processes of their own that come, go and come back."""

import os
import signal

import pytest
import torch
from weights_engine import HERE, Weights, child, digests

from verl_core.config.errors import RunError
from verl_core.config.schema import WeightsConfig
from verl_core.rollout.child import ChildEngine
from verl_core.weights.courier import Courier
from verl_core.weights.group import Group

KINDS = ["broadcast", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("delta", "disk"))]
TENSORS = {"a": torch.arange(300.0), "b": torch.randn(40, 30)}


class Engines:
    """Numbered tells to engines that can be replaced, as those of ranks are."""

    def __init__(self, *engines):
        self.engines = list(engines)

    def tells(self):
        return [
            lambda method, _i=i, **message: self.engines[_i].call(method, **message) for i in range(len(self.engines))
        ]

    def held(self, i):
        return self.engines[i].call("digests").result()


def courier(kind, engines, folder, verify=True):
    settings = WeightsConfig(type=kind, verify=verify, bucket_mb=1, folder=str(folder))
    return Courier(settings, engines.tells(), device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_engine_is_named_the_others_are_served_and_it_is_served_when_it_is_back(kind, tmp_path):
    with child() as first, child() as second, child() as third:
        engines = Engines(first, second)
        sends, trainer = courier(kind, engines, tmp_path), Weights(dict(TENSORS))
        assert sends.push(trainer, 1, [0, 1]) == {}
        os.kill(second.pid, signal.SIGKILL)
        trainer.tensors = {name: tensor + 1 for name, tensor in TENSORS.items()}
        lost = sends.push(trainer, 2, [0, 1])
        assert list(lost) == [1] and "SIGKILL" in lost[1].message
        assert engines.held(0) == digests(trainer.tensors.items())

        engines.engines[1] = third
        assert sends.push(trainer, 2, [1]) == {}
        trainer.tensors = {name: tensor + 2 for name, tensor in TENSORS.items()}
        assert sends.push(trainer, 3, [0, 1]) == {}
        assert engines.held(0) == engines.held(1) == digests(trainer.tensors.items())
        sends.close()


def test_an_engine_that_was_started_again_is_noticed_without_being_told(tmp_path):
    with child() as first, child() as again:
        engines = Engines(first)
        sends, trainer = courier("delta", engines, tmp_path), Weights(dict(TENSORS))
        sends.push(trainer, 1, [0])
        engines.engines[0] = again
        assert sends.push(trainer, 2, [0]) == {}
        assert engines.held(0) == digests(TENSORS.items())
        sends.close()


def altered(monkeypatch):
    """The wire: one bit of each bucket is another one than was sent."""
    send = Group.broadcast

    def broadcast(self, flat):
        flat[-1] ^= 1
        return send(self, flat)

    monkeypatch.setattr(Group, "broadcast", broadcast)


def test_a_bit_that_changes_on_the_way_is_an_error_that_names_the_tensor(monkeypatch, tmp_path):
    with child() as engine:
        sends = courier("broadcast", Engines(engine), tmp_path)
        altered(monkeypatch)
        with pytest.raises(RunError, match=r"version 1 .*holds other bytes than were sent: b"):
            sends.push(Weights(TENSORS), 1, [0])
        monkeypatch.undo()
        assert sends.push(Weights(TENSORS), 2, [0]) == {}  # the transport was made anew
        sends.close()


def test_of_an_engine_that_gives_nothing_back_what_it_took_is_compared(monkeypatch, tmp_path):
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    options = {"factory": "weights_blind:make", "options": {"keeps": False}, "device": "cpu"}
    with ChildEngine("verl_core.weights.child:make", options, env={"PYTHONPATH": path}) as engine:
        sends = courier("broadcast", Engines(engine), tmp_path)
        assert sends.push(Weights(TENSORS), 1, [0]) == {}
        altered(monkeypatch)
        with pytest.raises(RunError, match=r"version 2 .*other bytes than were sent: b"):
            sends.push(Weights(TENSORS), 2, [0])
        sends.close()


def test_two_runs_that_write_to_one_folder_notice_each_other(tmp_path):
    with child() as one, child() as other:
        first, second = courier("disk", Engines(one), tmp_path), courier("disk", Engines(other), tmp_path)
        first.push(Weights(TENSORS), 1, [0])
        second.push(Weights(TENSORS), 1, [0])
        folder = str(tmp_path / "version_1")
        with pytest.raises(RunError, match="was written by another run"):
            one.call("weights_take", version=1, folder=folder, writer="the first run's").result()
