"""Preference flows on the policy's own answers: online DPO, SPPO, SPIN."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from verl_core.algorithms.correction import mask_not_finite
from verl_core.algorithms.loss import Need
from verl_core.algorithms.preference.groups import best_and_worst, win_rate
from verl_core.batch import Batch, Trajectory, collate
from verl_core.controller.flows.base import of_the_sampler
from verl_core.controller.flows.preference import REWARDS, PreferenceFlow
from verl_core.data.example_rows import CHOSEN, REJECTED
from verl_core.tracking.timing import Timer


class OwnAnswersFlow(PreferenceFlow):
    """Answers come from the policy. Tokens for which the engine gave no finite log-prob leave mask_N."""

    async def prepare(self, batch: Batch, timer: Timer) -> Batch:
        mask_not_finite(batch)
        return batch


class OnlineDpoFlow(OwnAnswersFlow):
    """The best answer of each group against the worst, by reward; groups without a difference are left out."""

    def judged(self, batch: Batch) -> Batch:
        best_worst_G2 = best_and_worst(batch, batch["reward_S"])
        pairs = batch.select(best_worst_G2.flatten())
        return pairs.add(win_S=torch.tensor([1.0, 0.0]).repeat(len(best_worst_G2)))

    async def update(self, batch: Batch, step: int, timer: Timer) -> dict[str, float]:
        pairs = self.judged(batch)
        return await self.learn(pairs, step, timer) | {f"{REWARDS}ties": 1 - pairs.P / batch.P}


class SppoFlow(OwnAnswersFlow):
    """All answers of a group, each by its win rate against the others; the reference is the policy that gave them."""

    def judged(self, batch: Batch) -> Batch:
        return batch.add(win_S=win_rate(batch, batch["reward_S"]))

    async def reference(self, judged: Batch, timer: Timer) -> Tensor:
        if self.old_from_rollout:
            return judged["rollout_logp_N"]
        return of_the_sampler(judged, (await self.present(judged, timer))[Need.LOGP])


class SpinFlow(OwnAnswersFlow):
    """The prompt's demonstration (`meta["demonstration"]`) against the policy's own answer."""

    def judged(self, batch: Batch) -> Batch:
        own: list[Trajectory] = batch["trajectory_blob"]
        pairs = collate([[Trajectory.of(t.meta["demonstration"]), replace(t, sample=REJECTED)] for t in own])
        mask_not_finite(pairs)
        return pairs.add(win_S=(pairs["sample_S"] == CHOSEN).float())
