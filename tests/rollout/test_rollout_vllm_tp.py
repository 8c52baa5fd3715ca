"""VllmEngine over two worker processes, on the CPU: one engine as far as anybody outside can tell."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from rollout_children import descendants, runs, until
from rollout_models import build, engine_for, request
from rollout_vllm import EOS, VOCABULARY, config, defined_logps, interpreter, vllm_child, write

from verl_core.rollout.child import ChildEngine, EngineLost
from verl_core.rollout.protocol import TokenRequest

pytestmark = pytest.mark.slow
TIED = {"tie_word_embeddings": True}
CLOSE = {"atol": 1e-4, "rtol": 0}
ADAPTED = ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"]  # cut by rows and by columns, fused and not


def asked(temperature: float, count: int = 6) -> list[TokenRequest]:
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(8, VOCABULARY, (count, 7), generator=draw).tolist()
    words = {"max_tokens": 16, "temperature": temperature}
    return [request(str(i), tuple(ids), seed=i, **words) for i, ids in enumerate(prompts)]


def assert_like_one(engine: ChildEngine, model, version: int) -> None:
    """Greedy ids and log-probs of an engine in one process; log-probs of the definition where ids are drawn."""
    requests = asked(0.0)
    one_process = engine_for(model, eos_ids=EOS, max_model_len=512)
    for got, expected in zip(engine.generate(requests), one_process.generate(requests), strict=True):
        assert got.ids == expected.ids
        assert set(got.versions) == {version}
        torch.testing.assert_close(torch.tensor(got.logps), torch.tensor(expected.logps), **CLOSE)
    requests = asked(0.8)
    for one, got in zip(requests, engine.generate(requests), strict=True):
        torch.testing.assert_close(torch.tensor(got.logps), defined_logps(model, one, got).float(), **CLOSE)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildEngine]:
    folder = tmp_path_factory.mktemp("tp")
    write(folder, **TIED)
    with vllm_child(folder, interpreter(), tensor_parallel_size=2, enable_sleep=True) as engine:
        yield engine


def test_two_workers_take_tied_weights_and_sleep(engine):
    assert_like_one(engine, build(config(**TIED)), 0)  # the folder's weights
    for version in (1, 2):
        model = build(config(**TIED), seed=version)
        engine.update_weights(model.named_parameters(), version)
        assert_like_one(engine, model, version)
    engine.sleep()
    engine.wake()
    assert_like_one(engine, model, 2)


def test_a_dead_worker_is_a_lost_engine_that_leaves_nothing(engine):
    below = descendants(engine.pid)
    workers = [pid for pid in below if b"Worker_TP" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGSTOP)  # so that nothing ends before the kill
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(engine.generate, [request("long", (9, 10), seed=1, max_tokens=500, ignore_eos=True)])
        with pytest.raises(TimeoutError):
            running.exception(1)
        os.kill(workers[1], signal.SIGKILL)
        assert isinstance(running.exception(60), EngineLost)
    with pytest.raises(EngineLost):
        engine.wake()
    until(lambda: not any(runs(pid) for pid in below))


def test_an_adapter_comes_as_tensors(tmp_path: Path):
    """Each rank cuts its share; the result is that of the weights with the adapter folded in."""
    write(tmp_path)
    rule = LoraConfig(r=4, lora_alpha=16, target_modules=ADAPTED, init_lora_weights=False)
    words = {"r": 4, "lora_alpha": 16, "target_modules": ADAPTED}
    with vllm_child(tmp_path, interpreter(), tensor_parallel_size=2, lora_config=words) as engine:
        for version in (1, 2):
            torch.manual_seed(version)
            model = get_peft_model(build(config()), rule)
            tensors = get_peft_model_state_dict(model)
            engine.update_weights(tensors.items(), version)
            assert_like_one(engine, model.merge_and_unload(), version)
        with pytest.raises(KeyError, match="came by half"):
            engine.update_weights(list(tensors.items())[:-1], 3)
        with pytest.raises(KeyError, match="no part of an adapter"):
            engine.update_weights(build(config()).named_parameters(), 3)
