"""Sequences are dealt to ranks by what the model computes on them, not by their tokens alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest
import torch

from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.losses import SftLoss
from verl_core.batch import Batch
from verl_core.controller.accounting import Costs
from verl_core.controller.roles import Role
from verl_core.planning.flops import Flops
from verl_core.planning.models import shape_of

RANKS = 8


class Noted:
    """Stands for a pool of ranks: notes what each is given, and answers with zeros."""

    size = RANKS

    def __init__(self) -> None:
        self.dealt: list[Batch] = []

    async def scatter(self, method: str, arguments: Sequence[tuple]) -> list[Any]:
        self.dealt = [batch for _, batch, *_ in arguments]
        zeros = [{Need.LOGP: torch.zeros(batch.N)} for batch in self.dealt]
        return zeros if method == "forward" else [{} for _ in self.dealt]


def lognormal(S: int, seed: int) -> Batch:
    """Prompts of 200 tokens, answers of 500 in the median and up to 32,000, as reasoning models write them."""
    draw = torch.Generator().manual_seed(seed)
    answer_S = (torch.randn(S, generator=draw) * 1.2 + 6.2).exp().long().clamp(1, 32_000)
    batch = Batch(200 + answer_S, torch.arange(S), {})
    return batch.add(mask_N=batch.position_N >= 200)


def imbalance(flops: Flops, ranks: Sequence[Batch]) -> float:
    """max / mean of the FLOPs of ranks."""
    work = []
    for batch in ranks:
        answers = batch.sum_S(batch["mask_N"]).tolist()
        work.append(sum(flops.sequence(n, a) for n, a in zip(batch.length_S.tolist(), answers, strict=True)))
    return max(work) / fmean(work)


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-30B-A3B"])
def test_lognormal_lengths_are_even_in_flops(model: str):
    forward = Flops.forward(shape_of(model, {}))
    costs, by_length, by_flops = Costs(forward, forward.update()), [], []
    for seed in range(5):
        batch = lognormal(512, seed)
        for cost, found in ((None, by_length), (costs, by_flops)):
            group = Noted()
            asyncio.run(Role("actor", group, costs=cost).step(batch, SftLoss(), Totals.of(batch)))
            assert sum(share.S for share in group.dealt) == batch.S
            found.append(imbalance(costs.update, group.dealt))
    assert fmean(by_flops) < 1.01 and max(by_flops) < 1.02
    assert fmean(by_length) - 1 > 5 * (fmean(by_flops) - 1)


def test_what_is_asked_for_counts_by_phase():
    forward = Flops.forward(shape_of("Qwen/Qwen2.5-0.5B", {}))
    role, batch = Role("actor", Noted(), costs=Costs(forward, forward.update())), lognormal(16, 0)
    answers = batch.sum_S(batch["mask_N"]).tolist()
    once = sum(forward.sequence(n, a) for n, a in zip(batch.length_S.tolist(), answers, strict=True))
    asyncio.run(role.forward(batch, frozenset({Need.LOGP})))
    asyncio.run(role.forward(batch, frozenset({Need.LOGP}), snapshot="ref"))
    for _ in range(2):
        asyncio.run(role.step(batch, SftLoss(), Totals.of(batch)))
    assert role.asked == pytest.approx({"old_log_prob": once, "ref": once, "update_actor": 6 * once})


def test_answers_that_share_their_prompt_stay_together_and_count_it_once():
    forward = Flops.forward(shape_of("Qwen/Qwen2.5-0.5B", {}))
    costs = Costs(forward, forward.update())
    batch = lognormal(512, 0)
    batch = Batch(batch.length_S, torch.arange(512) // 8, batch.columns).add(prompt_len_S=torch.full((512,), 200))
    group = Noted()
    role = Role("actor", group, costs=costs, share_prompt=True)
    asyncio.run(role.step(batch, SftLoss(), Totals.of(batch)))
    assert sum(share.S for share in group.dealt) == 512
    assert sum(share.P for share in group.dealt) <= 64 + RANKS - 1  # each border between ranks cuts a group at most
    answers = batch.sum_S(batch["mask_N"]).tolist()
    whole = sum(costs.update.sequence(n, a) for n, a in zip(batch.length_S.tolist(), answers, strict=True))
    assert role.asked["update_actor"] == pytest.approx(whole - (512 - 64) * costs.update.sequence(200, 0))
    assert imbalance(costs.update, group.dealt) < 1.25
