"""Two ranks over gloo compute what one rank computes, and read each other's state."""

from __future__ import annotations

import functools
import multiprocessing
import operator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from training_tiny import SMOOTH, NllEntropy, Squared, make_batch, make_engine, totals, weights, write_model

from verl_core.config.schema import OptimConfig
from verl_core.training.protocol import EngineState, MicroBatching

MUON = OptimConfig(optimizer="muon", lr=1e-2, eps=1e-3, muon_lr=0.02)
SHARES = {
    "uneven": [[0, 2, 3, 5], [1, 4]],  # with one sequence a micro-batch: four against two
    "empty": [[0, 1, 2, 3, 4, 5], []],
}


def whole(state: EngineState) -> EngineState:
    """The state with every tensor gathered: what a checkpoint of any world size amounts to."""
    gather = lambda d: {k: (v.full_tensor() if isinstance(v, DTensor) else v).clone() for k, v in d.items()}  # noqa: E731
    return EngineState(gather(state.weights), gather(state.optimizer), state.scalars)


def run_steps(share, folder: Path, options, loss, steps: int, start: EngineState | None = None):
    batch = make_batch()
    engine = make_engine(folder, **options)
    if start is not None:
        engine.load_state(start)
    engine.snapshot("first")
    metrics = [engine.step(batch.select(share), loss, totals(batch)) for _ in range(steps)]
    logp = engine.forward(batch.select(share), loss.needs)
    with engine.use("first"):
        old = engine.forward(batch.select(share), loss.needs)
    return {
        "metrics": metrics,
        "weights": weights(engine),
        "state": whole(engine.state()),
        "out": logp,
        "old": old,
        "sharded": all(isinstance(t, DTensor) for _, t in engine.named_shards()),
    }


def join_group(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Runs `run_steps` on two ranks, each with its own share, and returns both results."""
    context, meeting = multiprocessing.get_context("spawn"), str(tmp_path_factory.mktemp("meeting") / "ranks")
    ranks = [ProcessPoolExecutor(1, context, join_group, (rank, meeting)) for rank in range(2)]
    yield lambda shares, *arguments: [
        future.result()
        for future in [rank.submit(run_steps, share, *arguments) for rank, share in zip(ranks, shares, strict=True)]
    ]
    for rank in ranks:
        rank.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def close(got: dict, want: dict, rel: float) -> None:
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=rel, atol=rel, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(
    ("share", "options", "loss", "rel"),
    [
        ("uneven", {"optim": SMOOTH, "micro": MicroBatching(sequences=1)}, NllEntropy(), 1e-5),
        ("empty", {"optim": MUON, "checkpointing": True}, NllEntropy(), 2e-3),  # torch's Muon orthogonalises in bf16
        ("uneven", {"role": "critic", "micro": MicroBatching(tokens=12)}, Squared(), 1e-5),
        ("uneven", {"model": {"lora_rank": 4}, "checkpointing": True}, NllEntropy(), 1e-5),
    ],
    ids=["adamw", "muon", "critic", "adapter"],
)
def test_two_ranks_equal_one_and_exchange_state(two_ranks, folder, share, options, loss, rel):
    one = run_steps(range(6), folder, options, loss, steps=2)
    two = two_ranks(SHARES[share], folder, options, loss, 2)
    for rank in two:
        assert rank["sharded"] and not one["sharded"]
        assert rank["metrics"][0] == pytest.approx(one["metrics"][0], rel=1e-5)
        assert rank["metrics"][1] == pytest.approx(one["metrics"][1], rel=rel)
        close(rank["weights"], one["weights"], rel)
        close(rank["state"].optimizer, one["state"].optimizer, rel)
        assert rank["state"].scalars == one["state"].scalars
    batch = make_batch()
    place_N = batch.token_index(torch.tensor(functools.reduce(operator.iadd, SHARES[share], [])))
    for part in ("out", "old"):
        for need in loss.needs:
            got = torch.cat([rank[part][need] for rank in two])
            torch.testing.assert_close(got, one[part][need][place_N], rtol=10 * rel, atol=10 * rel)

    onward = run_steps(range(6), folder, options, loss, 1, one["state"])
    from_two = run_steps(range(6), folder, options, loss, 1, two[0]["state"])
    assert from_two["metrics"][0] == pytest.approx(onward["metrics"][0], rel=rel)
    close(from_two["weights"], onward["weights"], rel)
    from_one = two_ranks(SHARES[share], folder, options, loss, 1, one["state"])
    assert from_one[1]["metrics"][0] == pytest.approx(onward["metrics"][0], rel=1e-5)
    close(from_one[1]["weights"], onward["weights"], rel)
