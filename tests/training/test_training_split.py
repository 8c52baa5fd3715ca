"""A mini-batch's loss and gradient do not depend on how it is cut: 1, 2 or 4 micro-batches, by sequences or by tokens,
on one rank or two, whoever gets which sequence; sequences without produced tokens included."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor
from training_tiny import SMOOTH, VOCAB, make_engine, write_model

from verl_core.algorithms.loss import Totals
from verl_core.algorithms.losses import PolicyLoss
from verl_core.batch import Batch, balance, micro_batches
from verl_core.config.errors import UserError
from verl_core.training.protocol import MicroBatching

AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def scored_batch(produced: list[int], seed: int) -> Batch:
    """Prompts of three tokens and answers of these lengths, 0 for none, with all that a policy loss reads."""
    draw = torch.Generator().manual_seed(seed)
    batch = Batch(torch.tensor(produced) + 3, torch.arange(len(produced)), {})
    return batch.add(
        ids_N=torch.randint(0, VOCAB, (batch.N,), generator=draw),
        mask_N=batch.position_N >= 3,
        old_logp_N=-4 + 0.1 * torch.randn(batch.N, generator=draw),
        advantages_N=torch.randn(batch.N, generator=draw),
    )


def gradient(folder: Path, batch: Batch, share: list[int], micro: MicroBatching, loss: PolicyLoss):
    """Metrics of one step, and the clipped gradient by name: AdamW's average is a tenth of it after the first step."""
    engine = make_engine(folder, micro=micro, optim=SMOOTH)
    metrics = engine.step(batch.select(share), loss, Totals.of(batch))
    state = engine.state().optimizer
    whole = {k: (v.full_tensor() if isinstance(v, DTensor) else v).clone() for k, v in state.items()}
    return metrics, {name: 10 * value for name, value in whole.items() if name.startswith("exp_avg/")}


def join_group(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> Iterator[Callable]:
    context, meeting = multiprocessing.get_context("spawn"), str(tmp_path_factory.mktemp("meeting") / "ranks")
    ranks = [ProcessPoolExecutor(1, context, join_group, (rank, meeting)) for rank in range(2)]

    def run(folder: Path, batch: Batch, shares: list[list[int]], *rest):
        calls = [rank.submit(gradient, folder, batch, share, *rest) for rank, share in zip(ranks, shares, strict=True)]
        return [call.result(timeout=300) for call in calls]

    yield run
    for rank in ranks:
        rank.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def same(got, want) -> None:
    assert got[0] == pytest.approx(want[0], rel=2e-5, abs=1e-6)
    assert got[1].keys() == want[1].keys() and got[1]
    for name, value in want[1].items():
        torch.testing.assert_close(got[1][name], value, rtol=1e-4, atol=1e-6)


answers = st.lists(st.integers(0, 9), min_size=4, max_size=10).filter(any)


@pytest.mark.slow
@settings(max_examples=3, derandomize=True, suppress_health_check=list(HealthCheck))
@given(produced=answers, seed=st.integers(0, 99), aggregation=st.sampled_from(AGGREGATIONS))
def test_loss_and_gradient_are_those_of_one_micro_batch_on_one_rank(two_ranks, folder, produced, seed, aggregation):
    batch = scored_batch(produced, seed)
    loss = PolicyLoss(agg_mode=aggregation, scale=16.0, entropy_coeff=0.05)
    want = gradient(folder, batch, list(range(batch.S)), MicroBatching(sequences=batch.S), loss)
    longest = int(batch.length_S.max())
    for parts in (2, 4):
        by_count = MicroBatching(sequences=-(-batch.S // parts))
        by_tokens = MicroBatching(tokens=max(longest, -(-batch.N // parts)))
        assert len(micro_batches(batch.length_S, by_count.sequences)) > 1
        for micro in (by_count, by_tokens):
            same(gradient(folder, batch, list(range(batch.S)), micro, loss), want)
    one_sided = [list(range(1, batch.S)), [0]]  # the second rank runs two tokens that count for nothing
    for shares in (balance(batch.length_S, 2), one_sided):
        for micro in (MicroBatching(sequences=batch.S), MicroBatching(sequences=2), MicroBatching(tokens=longest)):
            for rank in two_ranks(folder, batch, shares, micro, loss):
                same(rank, want)


def test_a_sequence_longer_than_the_budget_is_refused_before_anything_changes(folder):
    batch, engine = scored_batch([4, 9, 2], seed=0), make_engine(folder, micro=MicroBatching(tokens=11))
    before = {name: tensor.clone() for name, tensor in engine.named_weights()}
    with pytest.raises(UserError, match=r"1 of 3 sequences do not fit into .*=11: the longest has 12 tokens"):
        engine.step(batch, PolicyLoss(), Totals.of(batch))
    assert engine.updates == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.named_weights())
