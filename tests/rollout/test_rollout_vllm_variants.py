"""Engines that need a start of their own: an adapter, an update that fails, a head size that is refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from rollout_models import build, request
from rollout_vllm import VOCABULARY, config, defined_logps, interpreter, vllm_child, write

from verl_core.config.errors import MachineError, RunError, UserError
from verl_core.rollout.protocol import TokenRequest

pytestmark = pytest.mark.slow


def asked(count: int = 6) -> list[TokenRequest]:
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(8, VOCABULARY, (count, 7), generator=draw).tolist()
    return [request(str(i), tuple(ids), seed=i, max_tokens=16, temperature=0.8) for i, ids in enumerate(prompts)]


def test_an_adapter_is_served_and_replaced(tmp_path: Path):
    base = write(tmp_path / "base")
    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        rule = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
        model = get_peft_model(build(config()), rule)
        model.save_pretrained(tmp_path / f"adapter{seed}")
        folders.append((str(tmp_path / f"adapter{seed}"), model))
    with vllm_child(tmp_path / "base", interpreter(), lora=folders[0][0]) as engine:
        for version, (folder, model) in enumerate(folders):
            if version:
                engine.call("load_adapter", folder, version).result()
            requests = asked()
            for one, got in zip(requests, engine.generate(requests), strict=True):
                assert set(got.versions) == {version}
                logps = torch.tensor(got.logps)
                with_adapter = (defined_logps(model, one, got).float() - logps).abs().mean()
                without = (defined_logps(base, one, got).float() - logps).abs().mean()
                assert with_adapter < 2e-5 < 0.1 < without
        with pytest.raises(RunError, match="serves an adapter"):
            engine.update_weights(base.named_parameters(), 5)


def test_rows_that_grow_over_many_blocks_of_the_cache_are_the_models_own(tmp_path: Path):
    """Most of their tokens are given a place without vLLM's cache manager: a wrong one would change later log-probs."""
    model = write(tmp_path)
    requests = [
        request(str(i), tuple(range(9, 9 + 3 + 61 * i)), seed=i, max_tokens=290, ignore_eos=True) for i in range(3)
    ]
    with vllm_child(tmp_path, interpreter()) as engine:
        for one, got in zip(requests, engine.generate(requests), strict=True):
            assert len(got.ids) == 290
            assert (defined_logps(model, one, got).float() - torch.tensor(got.logps)).abs().max() < 2e-4


def test_rows_that_run_do_not_go_on_with_parts_of_two_versions(tmp_path: Path):
    model = write(tmp_path)
    heard = threading.Event()
    with vllm_child(tmp_path, interpreter()) as engine, ThreadPoolExecutor(1) as threads:
        long = [request("long", (9, 10), seed=1, max_tokens=500, ignore_eos=True)]
        running = threads.submit(engine.generate, long, lambda parts: heard.set())
        assert heard.wait(60)
        with pytest.raises(KeyError, match="did not come"):
            engine.update_weights(list(model.named_parameters())[:3], 1)
        assert isinstance(running.exception(60), RunError)


def test_a_head_size_that_the_cpu_lacks_is_a_line(tmp_path: Path):
    write(tmp_path, head_dim=24)
    with pytest.raises(UserError, match="heads have 24 dimensions; on the CPU vllm knows 32, 64"):
        vllm_child(tmp_path, interpreter())


def test_a_cache_larger_than_the_memory_is_a_line_and_a_hint(tmp_path: Path):
    """The CPU's twin of a GPU that is full. VLLM_CPU_KVCACHE_SPACE ends in the same place."""
    write(tmp_path)
    with pytest.raises(MachineError, match=r"vllm does not fit: .*requested memory for kv \(32768") as full:
        vllm_child(tmp_path, interpreter(), kv_cache_bytes=2**45)
    assert "\n" not in full.value.message and "lower rollout.max_model_len" in full.value.hint
