"""The hf engine in a process of its own, alone and as replicas: real tokens of a tiny real model."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rollout_children import WAIT, hf_child, until, write_folder
from rollout_models import EOS, FAMILY, build, engine_for, mixed_requests, prompt, request

from verl_core.config.errors import UserError
from verl_core.rollout.child import ChildEngine, memory
from verl_core.rollout.child.errors import EngineLost
from verl_core.rollout.child.shared_weights import mapped, written
from verl_core.rollout.hf.child import make
from verl_core.rollout.pool import ReplicaPool
from verl_core.rollout.protocol import TokenRequest
from verl_core.rollout.restarts import RestartBudget

# float64: rounding, which depends on the size of the batch, is then too small to change a draw.
PRECISE = {"dtype": "float64"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"))


def long_requests(kill: int) -> list[TokenRequest]:
    """Four of one prompt, two of others: many tokens, ended by length only."""
    ids = [prompt(kill)] * 4 + [prompt(100 + kill, 9), prompt(200 + kill, 3)]
    return [
        request(f"{kill}-{i}", p, seed=10 * kill + i, max_tokens=150 + 30 * i, ignore_eos=True)
        for i, p in enumerate(ids)
    ]


def test_it_generates_as_the_engine_in_this_process_does_before_and_after_new_weights(folder):
    requests = mixed_requests(20)
    first, second = build(FAMILY["qwen2-tied"]), build(FAMILY["qwen2-tied"], seed=9)
    here = engine_for(first, eos_ids=[EOS, 1], max_model_len=2048)  # 1: the end of the folder's tokenizer
    with hf_child(folder) as engine:
        for model, version in ((first, 0), (second, 3)):
            here.update_weights(model.named_parameters(), version)
            if version:
                engine.update_weights(model.named_parameters(), version)
            for there, mine in zip(engine.generate(requests), here.generate(requests), strict=True):
                assert (there.ids, there.finish, there.versions) == (mine.ids, mine.finish, mine.versions)
                torch.testing.assert_close(torch.tensor(there.logps), torch.tensor(mine.logps))
        with pytest.raises(KeyError, match="weights did not come"):
            engine.update_weights(list(first.named_parameters())[:3], 4)
        with pytest.raises(UserError, match="empty prompt"):
            engine.generate([request("a", ())])
        tied = {**dict(second.named_parameters()), "lm_head.weight": second.lm_head.weight}
        engine.update_weights(tied.items(), 5)  # two names of one tensor
        assert engine.generate(requests)[0].versions[0] == 5


def test_weights_lie_in_files_without_a_name_in_memory_or_where_there_is_room(monkeypatch, tmp_path):
    sent = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.tensor(5), "none": torch.empty(0, 4)}
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(memory.tempfile, "tempdir", str(tmp_path / "disk"))
    for free, place in ((2**40, "memory"), (10, "disk")):
        monkeypatch.setattr(memory.shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        with written(sent.items()) as files:
            assert Path(files[0]).readlink().parent == tmp_path / place
            held = dict(mapped(files))
            assert not list(tmp_path.glob("*/*"))
        assert held.keys() == sent.keys() and all(held[name].equal(sent[name]) for name in sent)


def test_a_wrong_dtype_is_refused_by_name(folder):
    with pytest.raises(UserError, match=r"rollout\.dtype is 'float7'"):
        make(model=str(folder), max_num_seqs=1, max_model_len=8, dtype="float7")


@pytest.mark.slow
def test_twenty_kills_mid_generation_lose_and_double_no_request_and_change_no_token(folder):
    """Compared with an engine that nobody disturbed."""
    count = 20
    engines: dict[int, ChildEngine] = {}
    starts: list[int] = []

    def start(number: int) -> ChildEngine:
        engines[number] = hf_child(folder, **PRECISE)
        starts.append(number)
        return engines[number]

    model = build(FAMILY["qwen2-tied"]).double()
    undisturbed = engine_for(model, dtype=torch.float64, max_model_len=2048)
    refreshed = []

    def refresh(engine: ChildEngine) -> None:
        engine.update_weights(model.named_parameters(), 1)
        refreshed.append(engine)

    with ThreadPoolExecutor(1) as thread, ReplicaPool(start, 2, refresh=refresh, budget=RestartBudget(count)) as pool:
        pool.each(lambda engine: engine.update_weights(model.named_parameters(), 1))
        for kill in range(count):
            requests = long_requests(kill)
            future = thread.submit(pool.generate, requests)
            total = sum(r.sampling.max_tokens for r in requests)
            until(lambda total=total: 0 < sum(pool.outstanding) < total)
            os.kill(engines[kill % 2].pid, signal.SIGKILL)
            answers = future.result(WAIT)
            assert [a.request_id for a in answers] == [r.request_id for r in requests]
            expected = undisturbed.generate(requests)
            assert [(a.ids, a.finish, a.versions) for a in answers] == [(e.ids, e.finish, e.versions) for e in expected]
            until(lambda kill=kill: len(starts) == 3 + kill and len(pool.each(lambda engine: engine.pid)) == 2)
        assert pool.outstanding == [0, 0] and pool.restarts == len(refreshed) == count


@pytest.mark.slow
def test_rows_of_an_engine_whose_update_fails_go_on_elsewhere_with_whole_weights(folder):
    model = build(FAMILY["qwen2-tied"]).double()
    engines: list[ChildEngine] = []

    def start(number: int) -> ChildEngine:
        engines.append(hf_child(folder, **PRECISE))
        return engines[-1]

    def refresh(engine: ChildEngine) -> None:
        engine.update_weights(model.named_parameters(), 1)

    requests = long_requests(0)
    expected = engine_for(model, dtype=torch.float64, max_model_len=2048).generate(requests)
    with ThreadPoolExecutor(1) as thread, ReplicaPool(start, 1, refresh=refresh) as pool:
        pool.each(refresh)
        future = thread.submit(pool.generate, requests)
        until(lambda: 0 < sum(pool.outstanding) < sum(r.sampling.max_tokens for r in requests))
        with pytest.raises((KeyError, EngineLost)):
            engines[0].update_weights(list(model.named_parameters())[:3], 2)
        answers = future.result(WAIT)
        assert pool.restarts == 1
    assert [(a.ids, a.versions) for a in answers] == [(e.ids, e.versions) for e in expected]


@pytest.mark.slow
def test_two_replicas_draw_unlike_samples_of_a_prompt_that_repeat(folder):
    """Case O8: replicas share no seed, and the split between them changes nothing."""
    requests = [request(str(i), prompt(0), seed=i, max_tokens=30, ignore_eos=True) for i in range(4)]
    alone = engine_for(build(FAMILY["qwen2-tied"]).double(), dtype=torch.float64).generate(requests)
    with ReplicaPool(lambda number: hf_child(folder, **PRECISE), 2) as pool:
        first, second = pool.generate(requests), pool.generate(requests)
    assert len({tuple(a.ids) for a in first}) == 4
    assert [a.ids for a in first] == [a.ids for a in second] == [a.ids for a in alone]
    assert [a.logps for a in first] == [a.logps for a in second]
