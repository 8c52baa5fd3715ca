"""What can be known of SGLang without an engine: our words are its words, what is refused, buckets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_models import request
from rollout_sglang import WORDS, interpreter
from rollout_vllm import ROOT, config

from verl_core.config.errors import MachineError, UserError
from verl_core.config.ranges import VLLM_LORA_RANK
from verl_core.rollout.rows import row_for
from verl_core.rollout.sglang import machine, make
from verl_core.rollout.sglang.options import SglangOptions, server_words, token_bytes
from verl_core.rollout.sglang.sampling import sampling_words, signed
from verl_core.rollout.sglang.weights import LOADER, buckets, load, unpacked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config().save_pretrained(tmp_path)
    return tmp_path


def options(folder: Path, **changes) -> SglangOptions:
    return SglangOptions(**{"model": str(folder)} | WORDS | changes)


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, total: int = 80 * 2**30, used: int = 0, count: int = 1) -> None:
    class Properties:
        total_memory = total

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda index: used)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)


CHECK = """
import dataclasses, inspect, json, sys
from sglang.srt.managers import io_struct
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
words = json.loads(sys.argv[1])
known = {
    "server": {field.name for field in dataclasses.fields(ServerArgs)},
    "sampling": set(SamplingParams.__struct_fields__),
    "request": set(inspect.signature(io_struct.GenerateReqInput).parameters),
}
print(json.dumps({kind: sorted(set(names) - known[kind]) for kind, names in words.items()}))
"""


@pytest.mark.slow
def test_the_installed_release_knows_every_word_also_those_for_gpus(folder, monkeypatch):
    python = interpreter()
    on_a_gpu(monkeypatch)
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"r": 8}')
    everything = options(folder, enable_sleep=True, deterministic=True, compile=True, lora=str(adapter))
    row = row_for(request("r", (1, 2), top_k=3, top_p=0.5), 100, None)
    words = {
        "server": [*server_words(everything, 0.5), "custom_sigquit_handler"],
        "sampling": [*sampling_words(row, frozenset({2}))],
        "request": ["rid", "input_ids", "sampling_params", "return_logprob", "lora_path", "stream"],
    }
    done = subprocess.run(
        [python, "-c", CHECK, json.dumps(words)], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == {"server": [], "sampling": [], "request": []}


def test_words_for_a_gpu(folder, monkeypatch):
    on_a_gpu(monkeypatch)
    plain = server_words(options(folder, kv_cache_bytes=None), 0.4)
    assert plain["device"] == "cuda" and plain["mem_fraction_static"] == 0.4 and "max_total_tokens" not in plain
    assert not plain["enable_memory_saver"] and not plain["disable_cuda_graph"]
    for level, kept in ((1, True), (2, False)):
        asleep = server_words(options(folder, enable_sleep=True, sleep_level=level), 0.4)
        assert asleep["enable_memory_saver"] and asleep["enable_weights_cpu_backup"] is kept
    assert server_words(options(folder, enforce_eager=True), 0.4)["disable_cuda_graph"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_words_for_the_cpu_bound_the_cache_and_leave_no_share_to_sglang(folder):
    """Its own choice there is below zero where the machine has 24 GB, and the start fails."""
    words = server_words(options(folder), None)
    assert words["device"] == "cpu" and words["mem_fraction_static"] == 0.9 and words["max_total_tokens"] > 0


def test_the_share_is_of_what_is_free(folder, monkeypatch):
    asked = options(folder, gpu_memory_utilization=0.5)
    on_a_gpu(monkeypatch, used=20 * 2**30)
    assert machine.memory_share(asked) == pytest.approx(40 / 60)
    on_a_gpu(monkeypatch, used=41 * 2**30)
    with pytest.raises(MachineError, match=r"39\.0 of 80\.0 GiB free, 41\.0 are used; the engine would take 40\.0"):
        machine.memory_share(asked)
    on_a_gpu(monkeypatch)
    with pytest.raises(MachineError, match="tensor_model_parallel_size=2, but 1 GPUs"):
        machine.memory_share(options(folder, tensor_parallel_size=2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_the_product_refuses(folder, monkeypatch):
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(MachineError, match="needs a CUDA GPU"):
        make(model=str(folder), **WORDS)


def test_bytes_of_a_token_of_cache(folder):
    assert token_bytes(options(folder)) == 2 * 2 * 2 * 32 * 4  # k and v, layers, heads, dimensions, float32
    assert token_bytes(options(folder, tensor_parallel_size=2, dtype="bfloat16")) == 2 * 2 * 1 * 32 * 2


def test_what_has_no_counterpart_is_refused(folder):
    adapter = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    with pytest.raises(UserError, match="from folders only"):
        options(folder, lora_config=adapter).check()
    with pytest.raises(UserError, match="max_lora_rank"):
        options(folder, max_lora_rank=8).check()


def test_limits_of_another_engine_are_not_its_own(folder):
    (folder / "adapter_config.json").write_text(json.dumps({"r": VLLM_LORA_RANK + 1}))
    options(folder, lora=str(folder)).check()


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0, "top_k": -1}),
        ({"top_k": 7}, {"top_k": 7, "top_p": 1.0}),
        ({"top_k": 1}, {"top_k": -1, "top_p": 1e-9}),
        ({"ignore_eos": True}, {"ignore_eos": True, "stop_token_ids": None}),
        ({}, {"ignore_eos": False, "stop_token_ids": [2, 5], "max_new_tokens": 9}),
    ],
)
def test_a_row_in_sglangs_words(sampling, words):
    row = row_for(request("r", (1, 2), max_tokens=12, **sampling), 100, None)
    for token in (8, 9, 10):  # it has been taken out with three tokens: nine are left
        row.push(token, -1.0, 0, frozenset())
    got = sampling_words(row, frozenset({5, 2}))
    assert {name: got.get(name) for name in words} == words


@given(st.integers(-(2**70), 2**70))
def test_seeds_keep_their_64_bits(seed):
    assert signed(seed) % 2**64 == seed % 2**64 and -(2**63) <= signed(seed) < 2**63


DTYPES = [torch.float32, torch.bfloat16, torch.uint8, torch.float64]
SHAPES = st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(DTYPES)), max_size=12)


@settings(max_examples=50)
@given(shapes=SHAPES, size=st.integers(1, 400))
def test_buckets_carry_every_bit_in_order(shapes, size):
    draw = torch.Generator().manual_seed(0)
    sent = []
    for i, (shape, dtype) in enumerate(shapes):
        count = torch.Size(shape).numel() * dtype.itemsize
        bits = torch.randint(0, 256, (count,), generator=draw, dtype=torch.uint8)
        sent.append((f"t{i}", bits.view(dtype).view(shape)))
    came = [(name, one.clone()) for text, flat in buckets(iter(sent), size) for name, one in unpacked(text, flat)]
    assert [name for name, _ in came] == [name for name, _ in sent]
    for (_, was), (_, now) in zip(sent, came, strict=True):
        assert was.shape == now.shape and was.dtype == now.dtype
        assert torch.equal(was.contiguous().view(-1).view(torch.uint8), now.contiguous().view(-1).view(torch.uint8))


def test_the_loader_has_the_name_that_sglang_is_told():
    module, _, name = LOADER.rpartition(".")
    assert (load.__module__, load.__name__) == (module, name)
