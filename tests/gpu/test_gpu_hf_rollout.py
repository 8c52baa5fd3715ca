"""The hf engine's CUDA graphs against the same steps without them. Run where there is a GPU: pytest tests/gpu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.rollout.rollout_models import EOS, FAMILY, GENERIC, build, mixed_requests, prompt, request
from verl_core.rollout.hf import HfEngine
from verl_core.rollout.hf.graphs import StepGraphs
from verl_core.rollout.protocol import Completion, TokenRequest

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def engine_on(model: Any, dtype: torch.dtype, graphs: bool = True, **options: Any) -> HfEngine:
    settings = {"device": CUDA, "max_num_seqs": 40, "max_model_len": 400, "eos_ids": [EOS, 7]} | options
    engine = HfEngine(model.config, None, dtype=dtype, **settings)
    engine.update_weights(model.named_parameters(), version=1)
    if not graphs:
        engine._graphs = None
    return engine


def recorded(engine: HfEngine) -> StepGraphs:
    assert engine._graphs is not None
    return engine._graphs


def many_requests() -> list[TokenRequest]:
    """More than run at once; greedy, tempered and filtered rows; lengths over several buckets of positions."""
    long = [
        request(f"long{i}", prompt(50 + i), seed=i, max_tokens=60 * i + 1, ignore_eos=True, top_p=0.9, top_k=20)
        for i in range(6)
    ]
    return [*mixed_requests(60), *long]


def same(got: list[Completion], want: list[Completion], tolerance: float) -> None:
    for ours, theirs in zip(got, want, strict=True):
        assert (ours.request_id, ours.ids, ours.finish) == (theirs.request_id, theirs.ids, theirs.finish)
        assert ours.logps == pytest.approx(theirs.logps, abs=tolerance)


@pytest.fixture(autouse=True)
def whole_float32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama-llama3-rope", "qwen2-one-sliding-layer", "qwen3"])
def test_graphs_give_what_the_steps_give(name: str, dtype: torch.dtype):
    model = build(FAMILY[name]).to(CUDA, dtype)
    requests = many_requests()
    want = engine_on(model, dtype, graphs=False).generate(requests)
    engine = engine_on(model, dtype)
    for _ in range(2):  # the second time every shape is replayed
        same(engine.generate(requests), want, 1e-5)
    assert len({shape[0] for shape in recorded(engine)._graphs}) > 2  # several buckets of rows
    assert len({shape[1] for shape in recorded(engine)._graphs}) > 2  # and of positions


def test_a_gpu_draws_what_a_cpu_draws():
    """In float64, where rounding changes no draw."""
    model = build(FAMILY["qwen2-tied"]).double()
    requests = many_requests()
    here = engine_on(model, torch.float64, device=torch.device("cpu")).generate(requests)
    same(engine_on(model, torch.float64).generate(requests), here, 2e-6)  # kept in float32


def test_the_generic_decoder_runs_without_graphs():
    model = build(GENERIC["gemma2"]).to(CUDA).double()
    requests = mixed_requests(30)
    engine = engine_on(model, torch.float64, max_num_seqs=9)
    assert engine._graphs is None
    here = engine_on(model, torch.float64, device=torch.device("cpu"), max_num_seqs=9).generate(requests)
    same(engine.generate(requests), here, 2e-6)  # kept in float32


@pytest.mark.parametrize("moved", [True, False])
def test_new_weights_reach_the_graphs(moved: bool):
    model, new = (build(FAMILY["qwen2-tied"], seed=seed).to(CUDA) for seed in (0, 4))
    requests = mixed_requests(30)
    engine = engine_on(model, torch.float32)
    engine.generate(requests)
    kept = len(recorded(engine))
    with torch.no_grad():
        for parameter, source in zip(model.parameters(), new.parameters(), strict=True):
            parameter.copy_(source)
    engine.update_weights((new if moved else model).named_parameters(), 2)
    assert len(recorded(engine)) == (0 if moved else kept) and kept > 0
    same(engine.generate(requests), engine_on(new, torch.float32, graphs=False).generate(requests), 1e-5)


def test_sleep_gives_back_the_memory_of_graphs_and_cache():
    model = build(FAMILY["qwen2-tied"]).to(CUDA)
    engine = engine_on(model, torch.float32)
    engine.KEPT_ASLEEP = 0
    requests = many_requests()
    want = engine.generate(requests)  # libraries take their workspaces for good here
    engine.sleep()
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        engine.wake()
        same(engine.generate(requests), want, 1e-5)
        assert len(recorded(engine)) > 0 and torch.cuda.memory_reserved() > before
        engine.sleep()
        assert len(recorded(engine)) == 0 and torch.cuda.memory_reserved() <= before


def test_steps_are_graphs_where_every_kernel_must_be_deterministic():
    model = build(FAMILY["qwen2-tied"]).to(CUDA)
    requests = mixed_requests(30)
    want = engine_on(model, torch.float32).generate(requests)
    torch.use_deterministic_algorithms(True)
    try:
        same(engine_on(model, torch.float32).generate(requests), want, 1e-5)
    finally:
        torch.use_deterministic_algorithms(False)
