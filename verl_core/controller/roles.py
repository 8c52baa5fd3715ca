"""A role as the controller sees it: whole batches go in and whole columns come out; how they are dealt out to ranks
stays in here."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

import torch
from torch import Tensor

from verl_core.algorithms.loss import Loss, Need, Totals, keeps_groups
from verl_core.batch import Batch
from verl_core.batch.packing import balance
from verl_core.batch.shared_prompt import deal_groups, own_cost_S
from verl_core.batch.whole_groups import deal_whole_groups
from verl_core.controller.accounting import Costs
from verl_core.controller.executors import WorkerGroup
from verl_core.controller.phases import forward_phase, update_phase
from verl_core.training.protocol import MicroBatching

# Columns a rank never needs: Python objects stay with the controller.
_HERE_ONLY = ("trajectory_blob",)


class Role:
    """`together`: that many neighbouring ranks split their rows, and are given the same sequences; the first of them
    answers. `costs`: what balances them, and counts in `asked`; None: tokens do. `share_prompt`: the answers of a
    prompt go to one rank as far as that keeps ranks balanced, and the prompt's cost counts once."""

    def __init__(
        self, name: str, group: WorkerGroup, together: int = 1, costs: Costs | None = None, share_prompt: bool = False
    ):
        self.name, self.group, self.together, self.costs = name, group, together, costs
        self.share_prompt = share_prompt
        self.asked: defaultdict[str, float] = defaultdict(float)  # FLOPs by phase

    def _shares(self, batch: Batch, phase: str, whole_groups: bool = False) -> list[list[int]]:
        """Sequences of each group of ranks."""
        cost_S, groups = self._cost_S(batch, phase), self.group.size // self.together
        if whole_groups:
            return deal_whole_groups(cost_S, batch.group_S, groups)
        return deal_groups(cost_S, batch.group_S, groups) if self.share_prompt else balance(cost_S, groups)

    def _cost_S(self, batch: Batch, phase: str) -> Tensor:
        """FLOPs of each sequence, which count as asked for in this phase; tokens where the formula is not known."""
        cost_S = self._flops_S(phase, batch.length_S, batch.sum_S(batch["mask_N"]))
        if self.share_prompt:
            prompt_S = batch["prompt_len_S"]
            cost_S = own_cost_S(cost_S, self._flops_S(phase, prompt_S, torch.zeros_like(prompt_S)), batch.group_S)
        if self.costs is not None:
            self.asked[phase] += float(cost_S.sum())
        return cost_S

    def _flops_S(self, phase: str, length_S: Tensor, answers_S: Tensor) -> Tensor:
        if self.costs is None:
            return length_S.double()
        flops = self.costs.of(phase)
        lengths = zip(length_S.tolist(), answers_S.tolist(), strict=True)
        return torch.tensor([flops.sequence(n, answers) for n, answers in lengths], dtype=torch.float64)

    def _dealt(self, shares: list[list[int]], batch: Batch, *rest: Any) -> list[tuple]:
        """A call's arguments rank by rank."""
        light = batch.drop(*_HERE_ONLY)
        return [call for share in shares for call in [(self.name, light.select(share), *rest)] * self.together]

    async def forward(
        self,
        batch: Batch,
        want: frozenset[Need],
        temperature: float = 1.0,
        micro: MicroBatching | None = None,
        snapshot: str | None = None,
        k: int = 0,
    ) -> dict[Need, Tensor]:
        """Per-token quantities [N, ...] in the order of the batch, whatever ranks computed them. `k`: of the likeliest
        tokens."""
        shares = self._shares(batch, forward_phase(self.name, snapshot))
        dealt = self._dealt(shares, batch, want, temperature, micro, snapshot, k)
        parts = (await self.group.scatter("forward", dealt))[:: self.together]
        place_N = batch.token_index(torch.tensor([i for share in shares for i in share], dtype=torch.int64))
        out = {}
        for need in want:
            value_N = torch.cat([part[need] for part in parts])
            out[need] = torch.empty_like(value_N).index_copy_(0, place_N, value_N)
        return out

    async def step(self, batch: Batch, loss: Loss, totals: Totals) -> dict[str, float]:
        """One optimizer step on a mini-batch. Metrics are already joined over ranks."""
        shares = self._shares(batch, update_phase(self.name), keeps_groups(loss))
        return (await self.group.scatter("step", self._dealt(shares, batch, loss, totals)))[0]

    async def renew_reference(self) -> None:
        """The present weights are the reference from now on."""
        await self.group.call("renew_reference", self.name)

    async def plan_schedule(self, optimizer_steps: int, per_training_step: int) -> None:
        """Tells the learning-rate schedule how many optimizer steps the run has, and a training step."""
        await self.group.call("plan_schedule", self.name, optimizer_steps, per_training_step)

    async def parameter_counts(self) -> tuple[int, int]:
        """How many parameters the role trains, and has."""
        return (await self.group.call("parameter_counts", self.name))[0]

    async def state_bytes(self) -> int:
        """Size of the role's checkpoint."""
        return (await self.group.call("state_bytes", self.name))[0]

    async def save(self, folder: str, behind: bool = False) -> None:
        """`behind`: leaves what it can to the ranks' `write_saved`."""
        await self.group.call("save", self.name, folder, behind)

    async def load(self, folder: str) -> None:
        await self.group.call("load", self.name, folder)


async def together[T](*work: tuple[Role, Coroutine[Any, Any, T]]) -> list[T]:
    """Awaits work of several roles, results in the order given: in turn for roles that share a pool (so that each one's
    time is its own), at the same time for roles on different pools."""
    results: dict[int, T] = {}

    async def in_turn(group: WorkerGroup) -> None:
        for place, (role, call) in enumerate(work):
            if role.group is group:
                results[place] = await call

    await asyncio.gather(*(in_turn(g) for g in {id(role.group): role.group for role, _ in work}.values()))
    return [results[place] for place in range(len(work))]
