"""What a vLLM engine refuses before vLLM is imported, its arguments, and its buckets of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_vllm import config

from verl_core.config.errors import EnvError, MachineError, UserError
from verl_core.rollout.vllm import make
from verl_core.rollout.vllm.core import engine_words
from verl_core.rollout.vllm.machine import check_memory
from verl_core.rollout.vllm.options import VllmOptions
from verl_core.rollout.vllm.weights import Packer, Reader


def options(folder: Path, **changes: Any) -> VllmOptions:
    return VllmOptions(**({"model": str(folder), "eos_ids": (2,), "max_model_len": 512} | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config(num_attention_heads=6, num_key_value_heads=3).save_pretrained(tmp_path)
    return tmp_path


def test_what_fits_passes(folder):
    options(folder, tensor_parallel_size=3).check()
    options(folder, max_model_len=1024).check()


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"tensor_parallel_size": 4}, "=4 does not divide the model's 6 attention heads", "one of 1, 3, 6"),
        ({"tensor_parallel_size": 2}, "=2 and the model's 3 key-value heads: neither divides", "one of 1, 3, 6"),
        ({"max_model_len": 1025}, "=1025 is longer than the 1024 tokens", "lower rollout.max_model_len"),
        ({"model": "/nowhere"}, "/nowhere/config.json cannot be read", "a folder with a config.json"),
        ({"lora": "/nowhere"}, "/nowhere holds no adapter", "that PEFT has saved"),
    ],
)
def test_what_does_not_fit_is_a_line_and_a_hint(folder, change, message, hint):
    with pytest.raises(UserError) as refused:
        options(folder, **change).check()
    assert message in refused.value.message and hint in refused.value.hint
    assert "\n" not in refused.value.message


def test_stretched_positions_are_left_to_vllm(folder):
    path = folder / "config.json"
    words = json.loads(path.read_text())
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 1e4}
    path.write_text(json.dumps(words | {"rope_parameters": yarn}))
    options(folder, max_model_len=4096).check()


def test_quantised_weights_are_refused(folder):
    path = folder / "config.json"
    words = json.loads(path.read_text())
    path.write_text(json.dumps(words | {"quantization_config": {"quant_method": "gptq", "bits": 4}}))
    with pytest.raises(UserError, match="holds quantised weights"):
        options(folder).check()


def test_a_missing_package_is_named_first(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvError, match="the package vllm is not in this environment") as missing:
        make(model=str(folder), eos_ids=[2], max_model_len=512)
    assert missing.value.hint == "rlx env sync --engine vllm"


class Card:
    total_memory = 100 * 2**30


@pytest.fixture
def one_gpu(monkeypatch):
    """A GPU of 100 GiB, 60 of them used."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda index: 60 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Card)


def test_a_full_gpu_is_named_with_its_figures(folder, one_gpu):
    check_memory(options(folder, gpu_memory_utilization=0.4))
    with pytest.raises(MachineError) as full:
        check_memory(options(folder, gpu_memory_utilization=0.5))
    assert full.value.message == ("GPU 0 has 40.0 of 100.0 GiB free, 60.0 are used; the engine would take 50.0")
    assert "rollout.gpu_memory_utilization" in full.value.hint
    with pytest.raises(MachineError, match="=2, but 1 GPUs are visible"):
        check_memory(options(folder, tensor_parallel_size=2))


def test_arguments_on_a_gpu(folder, one_gpu):
    words = engine_words(options(folder, max_num_seqs=40, enable_sleep=True))
    assert words["compilation_config"]["cudagraph_capture_sizes"] == [1, 2, 4, 8, 16, 32, 40]
    assert words["enable_sleep_mode"] and words["kv_cache_memory_bytes"] is None
    assert words["max_num_batched_tokens"] == 8192
    eager = engine_words(options(folder, enforce_eager=True, max_num_seqs=4))
    assert eager["enforce_eager"] and "compilation_config" not in eager and eager["max_num_batched_tokens"] == 2048
    assert "compilation_config" not in engine_words(options(folder, compile=True))


DTYPES = [torch.float32, torch.bfloat16, torch.uint8, torch.float64]
SHAPES = st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(DTYPES)), max_size=12)


@settings(max_examples=50)
@given(shapes=SHAPES, size=st.integers(1, 400))
def test_buckets_carry_every_bit_in_order_and_stay_small(shapes, size):
    draw = torch.Generator().manual_seed(0)
    given_ = []
    for i, (shape, dtype) in enumerate(shapes):
        count = torch.Size(shape).numel() * dtype.itemsize
        bits = torch.randint(0, 256, (count,), generator=draw, dtype=torch.uint8)
        given_.append((f"t{i}", bits.view(dtype).view(shape)))
    came = []
    largest = max([size, *(tensor.nbytes for _, tensor in given_)])
    packer, reader = Packer(size), Reader()
    for bucket in packer.buckets(iter(given_)):
        assert bucket.handle["size"] <= largest
        came += [(name, tensor.clone()) for name, tensor in reader.tensors(bucket)]
    assert [name for name, _ in came] == [name for name, _ in given_]
    for (_, was), (_, now) in zip(given_, came, strict=True):
        assert was.shape == now.shape and was.dtype == now.dtype
        assert torch.equal(was.contiguous().view(-1).view(torch.uint8), now.contiguous().view(-1).view(torch.uint8))
