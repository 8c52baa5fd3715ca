"""A loss that compares the sequences of a group: the same loss and gradient however a mini-batch is cut and dealt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from training_ranks import running, train
from training_tiny import VOCAB, make_engine, write_model

from verl_core.algorithms.loss import Metric, Need, Totals
from verl_core.algorithms.preference import Options
from verl_core.algorithms.preference.loss import PreferenceLoss
from verl_core.batch import Batch
from verl_core.batch.whole_groups import WholeGroups, deal_whole_groups
from verl_core.config.errors import UserError
from verl_core.training.fsdp.cutting import cut
from verl_core.training.protocol import MicroBatching

LOSS = PreferenceLoss("dpo", Options(beta=0.5))


def pairs(seed: int = 0) -> Batch:
    """Four pairs that begin alike, and are not side by side."""
    draw = torch.Generator().manual_seed(seed)
    lengths, group = torch.tensor([9, 6, 12, 5, 7, 8, 11, 6]), torch.tensor([0, 1, 2, 1, 3, 0, 2, 3])
    batch = Batch(lengths, group, {})
    prompts = torch.randint(0, VOCAB, (4, 3), generator=draw)
    ids_N = torch.randint(0, VOCAB, (batch.N,), generator=draw)
    inside_N = batch.position_N < 3
    ids_N[inside_N] = prompts[batch.group_S[batch.seq_N][inside_N], batch.position_N[inside_N]]
    return batch.add(
        ids_N=ids_N,
        mask_N=~inside_N,
        ref_logp_N=torch.randn(batch.N, generator=draw) - 4,
        win_S=torch.tensor([1.0, 0, 0, 1, 1, 0, 1, 0]),
    )


CUTS = {
    "one micro-batch": MicroBatching(sequences=64),
    "two": MicroBatching(sequences=4),
    "four": MicroBatching(sequences=1),
    "by tokens": MicroBatching(tokens=32),
    "each pair larger than the budget": MicroBatching(tokens=12),
}


def step(folder: Path, micro: MicroBatching, share_prompt: bool) -> tuple[dict, dict]:
    engine = make_engine(folder, micro=micro, share_prompt=share_prompt)
    metrics = engine.step(pairs(), LOSS, Totals.of(pairs()))
    return metrics, {name: p.clone() for name, p in engine.state().optimizer.items() if name.startswith("exp_avg/")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("pairs") / "model")


@pytest.fixture(scope="module")
def whole(folder: Path) -> tuple[dict, dict]:
    return step(folder, CUTS["one micro-batch"], False)


@pytest.mark.parametrize("share_prompt", [False, True], ids=["apart", "prompt shared"])
@pytest.mark.parametrize("micro", CUTS.values(), ids=CUTS.keys())
def test_cut_into_micro_batches(folder: Path, whole: tuple[dict, dict], micro: MicroBatching, share_prompt: bool):
    metrics, gradients = step(folder, micro, share_prompt)
    assert metrics == pytest.approx(whole[0], rel=1e-4, abs=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, whole[1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_two_ranks_with_different_numbers_of_pairs(folder: Path):
    """The rank with one pair fills up with micro-batches that count for nothing."""
    batch, options = pairs(), {"micro": MicroBatching(sequences=2)}
    alone = train(list(range(batch.S)), batch, folder, LOSS, options)
    shares = deal_whole_groups(torch.tensor([1.0, 9, 1, 9, 1, 1, 1, 1]), batch.group_S, 2)
    assert sorted(len(share) for share in shares) == [2, 6]
    with running(2) as call:
        found = call(train, shares, batch, folder, LOSS, options)
    for rank in found:
        for got, want in zip(rank["metrics"], alone["metrics"], strict=True):
            assert got == pytest.approx(want, rel=1e-4, abs=1e-6)
        for name, gradient in rank["gradients"].items():
            torch.testing.assert_close(gradient, alone["gradients"][name], rtol=1e-4, atol=1e-6)


def test_groups_stay_whole_on_ranks_and_in_micro_batches():
    batch = pairs()
    for ranks in (1, 2, 3, 6):
        shares = deal_whole_groups(batch.length_S.double(), batch.group_S, ranks)
        assert sorted(s for share in shares for s in share) == list(range(8))
        assert all(len(set(batch.group_S[share].tolist())) * 2 == len(share) for share in shares)
    for rule, most in ((MicroBatching(sequences=3), 3), (MicroBatching(tokens=40), 4), (MicroBatching(sequences=8), 9)):
        parts = cut(batch, rule, 1, True, lambda count, most=most: max(count, most))
        assert len(parts) == max(most, len(parts)) and parts.count(None) == max(0, most - 4)
        found = [set(batch.group_S[part].tolist()) for part in parts if part is not None]
        assert sorted(g for groups in found for g in groups) == [0, 1, 2, 3]


def test_what_a_budget_holds():
    groups = WholeGroups.of(pairs())
    assert groups.tokens == [17, 11, 23, 13]
    assert groups.cut(tokens=28) == [[0, 1], [2], [3]]
    assert groups.cut(tokens=14, ranks=2) == [[0, 1], [2], [3]]
    assert groups.cut(tokens=12) == [[0], [1], [2], [3]]  # all but one are larger
    with pytest.raises(UserError, match="the longest has 12 tokens"):
        groups.cut(tokens=11)
    assert WholeGroups.of(pairs().select([])).cut(tokens=11) == []
    assert WholeGroups.of(pairs().add(shared_len_S=torch.full((8,), 3))).tokens == [14, 8, 20, 10]


@dataclass(frozen=True)
class Alone:
    """Does not say that it compares."""

    needs = frozenset({Need.LOGP})
    temperature = 1.0

    def __call__(self, out, batch, totals):
        return out[Need.LOGP].sum(), {"sequences": Metric(batch.S, how="max")}


def test_other_losses_are_cut_as_before(folder: Path):
    engine = make_engine(folder, micro=MicroBatching(sequences=1))
    assert engine.step(pairs(), Alone(), Totals.of(pairs()))["sequences"] == 1
