"""Replicas on a pool of their own, real hf engines that are sent real weights: one that is lost while the trainer's
weights change in place comes back with those of a version."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout_children import WAIT, child, until, write_folder
from rollout_models import FAMILY, build, prompt, reference_logps, request
from torch import Tensor

from verl_core.config.schema import WeightsConfig
from verl_core.rollout.child import ChildEngine
from verl_core.rollout.child.errors import EngineLost
from verl_core.rollout.pool import ReplicaPool
from verl_core.weights.courier import Courier

pytestmark = pytest.mark.slow


class Trainer:
    """Its weights change in place, a tensor at a time."""

    def __init__(self) -> None:
        self.model = build(FAMILY["qwen2-tied"])

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from ((name, p.detach()) for name, p in self.model.named_parameters())

    named_shards = named_weights

    @torch.no_grad()
    def learn(self, between: Callable[[], Any]) -> None:
        """`between`: is called when half of them are new."""
        parameters = list(self.model.parameters())
        for i, parameter in enumerate(parameters):
            if i == len(parameters) // 2:
                between()
            parameter.mul_(0.8)


@pytest.mark.parametrize("kind", ["broadcast", "delta"])
def test_a_replica_that_is_back_while_weights_change_generates_with_a_whole_version(kind: str, tmp_path: Path):
    folder, trainer = write_folder(tmp_path), Trainer()
    options = {"model": str(folder), "max_num_seqs": 64, "max_model_len": 2048, "load": False}
    words = {"factory": "verl_core.rollout.hf.child:make", "options": options, "device": "cpu", "keeps": True}
    engines: dict[int, ChildEngine] = {}
    may_start = threading.Event()
    may_start.set()

    def start(number: int) -> ChildEngine:
        assert may_start.wait(WAIT)
        engines[number] = child("verl_core.weights.child:make", words)
        return engines[number]

    tells = [lambda method, _i=i, **message: engines[_i].call(method, **message) for i in range(2)]
    settings = WeightsConfig(type=kind, verify=True, bucket_mb=1)
    courier = Courier(settings, tells, device=torch.device("cpu"), dtype=torch.float32)
    version = 1

    def refresh(engine: ChildEngine) -> None:
        number = next(i for i, one in engines.items() if one is engine)
        assert courier.push(trainer, version, [number]) == {}

    def push(running: Mapping[int, ChildEngine]) -> Mapping[int, EngineLost]:
        return courier.push(trainer, version, sorted(running))

    with ThreadPoolExecutor(1) as thread, ReplicaPool(start, 2, refresh=refresh) as pool:
        pool.together(push)
        may_start.clear()
        asked = [request(str(i), prompt(i), seed=i, max_tokens=400, ignore_eos=True) for i in range(4)]
        generation = thread.submit(pool.generate, asked)
        until(lambda: 0 < sum(pool.outstanding) < 1600)
        lost = engines[1]
        os.kill(lost.pid, signal.SIGKILL)
        assert {v for a in generation.result(WAIT) for v in a.versions} == {1}
        pool.hold()

        def comes_back() -> None:
            may_start.set()
            until(lambda: engines[1] is not lost)
            threading.Event().wait(0.5)  # time to be given half of them, if it were

        trainer.learn(comes_back)
        version = 2
        assert engines[1].call("weights_version").result() == {"version": None}
        pool.together(push)
        until(lambda: len(pool.each(lambda engine: engine.pid)) == 2)
        assert engines[1].call("weights_version").result() == {"version": 2}
        short = [request(str(i), prompt(i), seed=i) for i in range(6)]
        for answer, one in zip(pool.generate(short), short, strict=True):
            assert set(answer.versions) == {2}
            expected = reference_logps(trainer.model, one, answer)
            torch.testing.assert_close(torch.tensor(answer.logps), expected, atol=1e-5, rtol=0)
        courier.close()
