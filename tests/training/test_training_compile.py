"""Compiled layers give what plain ones give, on rows of few lengths."""

from functools import partialmethod

import pytest
import torch
from torch import nn
from torch._dynamo.testing import EagerAndRecordGraphs
from training_tiny import VOCAB, NllEntropy, make_batch, make_engine, totals, weights, write_model

from tests.support.ragged_cpu import ragged_kernel_on_the_cpu
from tests.training.training_ranks import running, train
from verl_core.algorithms.loss import Need
from verl_core.batch import Batch
from verl_core.config.schema import FsdpConfig
from verl_core.training.fsdp.packed_input import PackedInput, full_row
from verl_core.training.fsdp.shard import decoder_layers
from verl_core.training.protocol import MicroBatching

CPU = torch.device("cpu")
LOGP = frozenset({Need.LOGP})


@pytest.mark.parametrize("granularity", ["full", "selective"])
def test_recomputed_layers_with_joint_projections_are_one_graph(tmp_path, granularity):
    """Else they run in pieces, uncompiled: a third slower on a GPU."""
    engine = make_engine(
        write_model(tmp_path, num_key_value_heads=1, num_hidden_layers=4),
        fsdp=FsdpConfig(use_torch_compile=True),
        checkpointing=True,
        model={"recompute_granularity": granularity},
    )
    graphs = EagerAndRecordGraphs()
    for layer in decoder_layers(engine.network):
        assert "joint" in repr(layer.self_attn.q_proj.forward).lower()
        layer.compile(backend=graphs, fullgraph=True)
    torch._dynamo.reset()
    metrics = engine.step(make_batch(), NllEntropy(), totals(make_batch()))
    assert metrics["actor/grad_norm"] > 0
    assert len(graphs.graphs) == 2  # the first layer makes what padding needs and the others find it
    assert all("checkpoint" in str(module.graph) for module in graphs.graphs)


def test_padding_behind_a_row_is_sequences_of_its_own():
    batch = make_batch((9, 4))
    x = PackedInput.of(batch, CPU, row=32)
    assert x.packing.length_S == (9, 4, 9, 9, 1) and x.N == 13 and x.ids_1R.shape == x.position_1R.shape == (1, 32)
    assert x.position_1R[0, 13:].tolist() == [*range(9), *range(9), 0]
    assert torch.equal(x.token_K, PackedInput.of(batch, CPU).token_K) and int(x.token_K.max()) < 13


def test_rows_of_a_pass_are_laid_out_alike(tmp_path):
    """For the most sequences and the longest one of all: a row with a shape of its own would be compiled anew."""
    fsdp = FsdpConfig(use_torch_compile=True)
    engine = make_engine(write_model(tmp_path), micro=MicroBatching(tokens=256), fsdp=fsdp)
    rows = [x for _, x in engine._inputs(make_batch((200, *[12] * 20)), None)]
    assert len({x.packing.S for x in rows}) > 1
    assert {(len(x.packing.cu_B1), x.packing.longest) for x in rows} == {(17, 256)}


def test_a_row_that_is_compiled_first_is_full_of_the_batchs_sequences():
    batch = make_batch((9, 4, 12))
    row = full_row(batch, 30)
    assert row.length_S.tolist() == [4, 9, 12, 4] and torch.equal(row["ids_N"][:4], batch["ids_N"][9:13])
    assert row["mask_N"].tolist() == [False] * 28 + [True] and batch["mask_N"].sum() > 1
    assert full_row(batch, 3).length_S.tolist() == [2] and full_row(batch.select([]), 30).length_S.tolist() == [2]
    shared = batch.add(shared_len_S=torch.tensor([8, 3, 11]))
    assert full_row(shared, 30).group_S.tolist() == [1, 1, 0, 2] and full_row(shared, 7).length_S.tolist() == [2, 2]


KINDS = [
    pytest.param({}, False, id="plain"),
    pytest.param({"lora_rank": 2}, False, id="adapter", marks=pytest.mark.slow),
    pytest.param({}, True, id="shared", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("model", "share"), KINDS)
def test_later_passes_compile_nothing(tmp_path, monkeypatch, model, share):
    """Whatever their rows' lengths, and how many sequences of which lengths are in them."""

    def passes(engine, *lengths):
        group_S = torch.arange(len(lengths)) // 2 if share else torch.arange(len(lengths))
        batch = make_batch(lengths)
        batch = Batch(batch.length_S, group_S, {**batch.columns, "ids_N": batch.position_N % VOCAB})
        with engine.use("ref"):
            engine.forward(batch, LOGP)
        return engine.forward(batch, LOGP)[Need.LOGP], engine.step(batch, NllEntropy(), totals(batch))

    settings = {"micro": MicroBatching(tokens=64), "model": model, "share_prompt": share}
    folder = write_model(tmp_path, max_position_embeddings=256)
    plain = make_engine(folder, **settings)
    with ragged_kernel_on_the_cpu(monkeypatch):
        engine = make_engine(folder, **settings, fsdp=FsdpConfig(use_torch_compile=True))
        for layer in decoder_layers(engine.network):
            layer.compile(dynamic=False, backend="aot_eager")
        for each in (plain, engine):
            each.snapshot("ref")
        torch._dynamo.reset()
        counters = torch._dynamo.utils.counters["stats"]
        seen = []
        for lengths in ((9, 9, 12, 12), (64, 60, *[3] * 40), (4, 4), (30, 30, 40, 5), (17, 19)):
            got = passes(engine, *lengths)
            seen.append(counters["unique_graphs"])
    assert seen[0] > 0 and seen == [seen[0]] * len(seen)
    monkeypatch.undo()
    for lengths in ((9, 9, 12, 12), (64, 60, *[3] * 40), (4, 4), (30, 30, 40, 5), (17, 19)):
        want = passes(plain, *lengths)
    torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-4)
    assert got[1] == pytest.approx(want[1], rel=1e-4)


def _compiled(share, *arguments):
    """`train` on one rank whose layers are compiled around the kernel, and the number of compilations."""
    counters = torch._dynamo.utils.counters["stats"]
    with pytest.MonkeyPatch.context() as patch, ragged_kernel_on_the_cpu(patch):
        patch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))
        before = counters["unique_graphs"]
        return train(share, *arguments), counters["unique_graphs"] - before


@pytest.mark.slow
def test_ranks_meet_all_lengths_together(tmp_path):
    """Rows that count for nothing leave no gradient. Both ranks have half of every row."""
    folder, batch = write_model(tmp_path, max_position_embeddings=256), make_batch((30, 9, 12, 7, 40, 5))
    every = list(range(batch.S))
    want = train(every, batch, folder, NllEntropy(), {})
    options = {"micro": MicroBatching(tokens=64), "split": 2, "use_torch_compile": True}
    with running(2) as call:
        results = call(_compiled, [every, every], batch, folder, NllEntropy(), options)
    for got, compilations in results:
        assert compilations == 8  # four lengths, with and without gradients
        for metrics, alone in zip(got["metrics"], want["metrics"], strict=True):
            assert metrics == pytest.approx(alone, rel=1e-4)
        for name, gradient in want["gradients"].items():
            scale = float(gradient.abs().max())
            torch.testing.assert_close(got["gradients"][name], gradient, rtol=0, atol=1e-5 * scale, msg=name)


@pytest.mark.slow  # torch.compile calls a C++ compiler here: about a minute
@pytest.mark.parametrize("micro", [MicroBatching(tokens=24), MicroBatching(sequences=2)])
def test_a_compiled_engine_equals_a_plain_one(tmp_path, micro):
    folder, batch = write_model(tmp_path), make_batch()
    plain = make_engine(folder, micro=micro)
    compiled = make_engine(folder, micro=micro, fsdp=FsdpConfig(use_torch_compile=True))
    if micro.tokens:
        assert {x.ids_1R.shape[1] for _, x in compiled._inputs(batch, None)} <= {6, 12, 18, 24}
    wanted = frozenset({Need.LOGP, Need.ENTROPY})
    for a, b in zip(plain.forward(batch, wanted).values(), compiled.forward(batch, wanted).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    metrics = [engine.step(batch, NllEntropy(), totals(batch)) for engine in (plain, compiled)]
    assert metrics[0]["actor/grad_norm"] == pytest.approx(metrics[1]["actor/grad_norm"], rel=1e-5)
    for (name, a), b in zip(weights(plain).items(), weights(compiled).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
