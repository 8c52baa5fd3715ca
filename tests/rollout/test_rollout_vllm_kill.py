"""A real vLLM replica, on the CPU, killed in the middle of a generation."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from rollout_children import until
from rollout_models import request
from rollout_vllm import VOCABULARY, defined_logps, interpreter, vllm_child, write

from verl_core.rollout.child import ChildEngine
from verl_core.rollout.pool import ReplicaPool
from verl_core.rollout.restarts import RestartBudget

pytestmark = pytest.mark.slow
STARTS = 300.0  # seconds that two engines and a third may take on a busy machine


def ids(seed: int, length: int = 6) -> tuple[int, ...]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(10, VOCABULARY, (length,), generator=draw).tolist())


def test_a_kill_mid_generation_loses_and_doubles_no_request(tmp_path: Path):
    model, python = write(tmp_path), interpreter()
    engines: dict[int, ChildEngine] = {}
    starts: list[int] = []
    refreshed: list[ChildEngine] = []

    def start(number: int) -> ChildEngine:
        engines[number] = vllm_child(tmp_path, python)
        starts.append(engines[number].pid)
        return engines[number]

    def refresh(engine: ChildEngine) -> None:
        engine.update_weights(model.named_parameters(), 1)
        refreshed.append(engine)

    asked = [request(str(i), ids(i // 2), seed=i, max_tokens=300 + i, ignore_eos=True) for i in range(8)]
    with (
        ThreadPoolExecutor(1) as thread,
        ReplicaPool(start, 2, refresh=refresh, budget=RestartBudget(1)) as pool,
    ):
        pool.each(lambda engine: engine.update_weights(model.named_parameters(), 1))
        generation = thread.submit(pool.generate, asked)
        total = sum(r.sampling.max_tokens for r in asked)
        until(lambda: 0 < sum(pool.outstanding) < total - 32 * len(asked))  # all have told some tokens
        os.kill(engines[0].pid, signal.SIGKILL)
        answers = generation.result(STARTS)
        until(lambda: len(pool.each(lambda engine: engine.pid)) == 2, STARTS)
        assert len(starts) == 3 and len(refreshed) == pool.restarts == 1
        assert pool.outstanding == [0, 0]
        again = pool.generate(asked)
    for completions in (answers, again):
        assert [a.request_id for a in completions] == [r.request_id for r in asked]
        for r, a in zip(asked, completions, strict=True):
            assert (len(a.ids), a.finish, set(a.versions)) == (r.sampling.max_tokens, "length", {1})
            torch.testing.assert_close(torch.tensor(a.logps).double(), defined_logps(model, r, a), atol=1e-3, rtol=1e-3)
