"""The engine on GPUs: the flash kernel, bf16 under FSDP2, memory really moved, and two ranks over NCCL."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import torch.distributed as dist
from training_tiny import SMOOTH, NllEntropy, Squared, make_batch, make_engine, totals, weights, write_model

from verl_core.algorithms.loss import Need
from verl_core.config.schema import FsdpConfig
from verl_core.models.attention import packed_attention
from verl_core.models.packing import Packing
from verl_core.platforms import current
from verl_core.training.protocol import MicroBatching

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LOGP = frozenset({Need.LOGP})
FLOAT32 = FsdpConfig(dtype="float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
def test_flash_kernel_equals_padded_attention(window, heads):
    torch.manual_seed(0)
    lengths = (33, 1, 70, 12)
    packing = Packing(lengths, torch.device("cuda"))
    query, key, value = (torch.randn(1, h, sum(lengths), 64, device="cuda") for h in (heads[0], heads[1], heads[1]))
    weight = torch.randn(1, sum(lengths), heads[0], 64, device="cuda")
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [x.to(dtype).requires_grad_() for x in (query, key, value)]
        out, _ = packed_attention(torch.nn.Identity(), *inputs, None, packing=packing, sliding_window=window)
        results.append((out, *torch.autograd.grad((out * weight.to(dtype)).sum(), inputs)))
    for exact, half in zip(*results, strict=True):
        torch.testing.assert_close(half.float(), exact, rtol=0.03, atol=0.03)


def test_float32_on_a_gpu_equals_the_cpu(folder):
    batch = make_batch()
    engines = [make_engine(folder, platform=p, fsdp=FLOAT32) for p in (current("cpu"), current("cuda"))]
    cpu, gpu = ([e.step(batch, NllEntropy(), totals(batch)) for _ in range(2)] for e in engines)
    assert gpu[0] == pytest.approx(cpu[0], rel=1e-4) and gpu[1] == pytest.approx(cpu[1], rel=1e-3)
    out = [e.forward(batch, LOGP)[Need.LOGP] for e in engines]
    torch.testing.assert_close(out[1], out[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("role", "loss"), [("actor", NllEntropy()), ("critic", Squared())])
def test_bf16_under_fsdp_follows_float32(folder, role, loss):
    batch = make_batch()
    exact = make_engine(folder, role, platform=current("cpu"))
    half = make_engine(folder, role, platform=current("cuda"), micro=MicroBatching(tokens=16), checkpointing=True)
    for _ in range(3):
        want, got = exact.step(batch, loss, totals(batch)), half.step(batch, loss, totals(batch))
        assert got[f"{role}/loss"] == pytest.approx(want[f"{role}/loss"], rel=0.03)
    before = half.forward(batch, loss.needs)
    half.snapshot("now")
    half.step(batch, loss, totals(batch))
    with half.use("now"):
        again = half.forward(batch, loss.needs)
    for need in loss.needs:
        assert torch.equal(before[need], again[need])


def test_offload_frees_the_device_and_training_goes_on_bitwise(tmp_path):
    folder = write_model(tmp_path, hidden_size=512, intermediate_size=1024, vocab_size=4096)
    batch, platform = make_batch(), current("cuda")
    plain, moved = (make_engine(folder, platform=platform, optim=SMOOTH) for _ in range(2))
    for engine in (plain, moved):
        engine.step(batch, NllEntropy(), totals(batch))
    held = torch.cuda.memory_allocated()
    moved.offload("cpu")
    size = sum(t.nbytes for t in weights(plain).values())
    assert held - torch.cuda.memory_allocated() > 2.9 * size  # float32 weights and two moments
    moved.offload("device", frozenset({"params"}))
    assert torch.equal(moved.forward(batch, LOGP)[Need.LOGP], plain.forward(batch, LOGP)[Need.LOGP])
    assert moved.step(batch, NllEntropy(), totals(batch)) == plain.step(batch, NllEntropy(), totals(batch))
    for name, tensor in plain.named_weights():
        assert torch.equal(tensor, dict(moved.named_weights())[name])


def _join(rank: int) -> None:
    current("cuda", local_rank=rank).set_device()
    options = {"init_method": "tcp://127.0.0.1:29731", "rank": rank, "world_size": 2}
    dist.init_process_group("nccl", **options)


def _two_steps(rank: int, share, folder) -> tuple[list[dict], dict]:
    batch = make_batch()
    engine = make_engine(folder, platform=current("cuda", local_rank=rank), fsdp=FLOAT32, micro=MicroBatching(1))
    metrics = [engine.step(batch.select(share), NllEntropy(), totals(batch)) for _ in range(2)]
    return metrics, {name: tensor.cpu().numpy() for name, tensor in weights(engine).items()}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_equal_one_cpu_rank(folder):
    context = multiprocessing.get_context("spawn")
    ranks = [ProcessPoolExecutor(1, context, _join, (rank,)) for rank in range(2)]
    jobs = [ranks[r].submit(_two_steps, r, share, folder) for r, share in enumerate([[0, 2, 3, 5], [1, 4]])]
    batch, one = make_batch(), make_engine(folder, platform=current("cpu"))
    want = [one.step(batch, NllEntropy(), totals(batch)) for _ in range(2)]
    for job in jobs:
        metrics, trained = job.result()
        assert metrics[0] == pytest.approx(want[0], rel=1e-4) and metrics[1] == pytest.approx(want[1], rel=1e-3)
        for name, tensor in one.named_weights():
            torch.testing.assert_close(torch.from_numpy(trained[name]), tensor, rtol=1e-3, atol=1e-4)
    for rank in ranks:
        rank.shutdown()
