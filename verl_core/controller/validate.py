"""Validation: every held-out prompt once (or n times), in file order, scored like training answers; or, where answers
are read and not generated, what the flow says of every held-out example."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from verl_core.batch import Trajectory, collate
from verl_core.controller.flows import Flow
from verl_core.controller.scores import Answer, answer_of, best_at, by_source, majority, mean_reward
from verl_core.controller.sources import GroupMaker
from verl_core.data.dataset import PromptDataset, PromptRow
from verl_core.data.examples import ExampleDataset
from verl_core.rollout.protocol import Sampling
from verl_core.tracking.timing import Timer


@dataclass
class Validator:
    dataset: PromptDataset
    maker: GroupMaker
    sampling: Sampling
    n: int

    async def run(self) -> tuple[dict[str, float], list[list[Trajectory]]]:
        """Metrics, and the groups they come from."""
        groups = await self.answer(self.dataset.take(range(len(self.dataset))))
        return validation_metrics([[answer_of(t) for t in g] for g in groups], self.maker.seed), groups

    async def answer(self, rows: Sequence[PromptRow]) -> list[list[Trajectory]]:
        """n scored answers to each prompt. Draws do not depend on the step, so that scores of different steps differ
        only by the weights."""
        made = (self.maker.make(row, self.n, self.sampling, "validation", 0) for row in rows)
        return list(await asyncio.gather(*made))


@dataclass
class ExampleValidator:
    dataset: ExampleDataset
    flow: Flow
    timer: Timer

    async def run(self) -> tuple[dict[str, float], list[list[Trajectory]]]:
        """val/<name>/<source> for each number that the flow gives of a source's examples, and those."""
        groups = [self.dataset.group(row) for row in self.dataset.take(range(len(self.dataset)))]
        metrics: dict[str, float] = {}
        for source in sorted({g[0].meta["data_source"] for g in groups}):
            batch = collate([g for g in groups if g[0].meta["data_source"] == source])
            found = await self.flow.measure(batch, self.timer)
            metrics |= {f"val/{name}/{source}": value for name, value in found.items()}
        return metrics, groups


def validation_metrics(groups: Sequence[Sequence[Answer]], seed: int) -> dict[str, float]:
    """val/test_score/<source> (mean reward) and, where the scorer says what is right, val/acc/<source>; for n > 1 also
    val-core/<source>/reward/{mean,best,maj}@n: of a prompt's n answers the mean, the best, and the reward of the answer
    given most often. `seed` decides between answers given equally often (see `scores.majority`)."""
    metrics: dict[str, float] = {}
    for source, own in by_source(groups).items():
        answers = [a for g in own for a in g]
        metrics[f"val/test_score/{source}"] = fmean(a.reward for a in answers)
        judged = [a.acc for a in answers if a.acc is not None]
        if judged:
            metrics[f"val/acc/{source}"] = fmean(judged)
        metrics[f"val/response_length/{source}"] = fmean(a.tokens for a in answers)
        n = len(own[0])
        if n > 1:
            core = f"val-core/{source}/reward"
            metrics[f"{core}/mean@{n}"] = fmean(mean_reward(g) for g in own)
            metrics[f"{core}/best@{n}"] = fmean(best_at([a.reward for a in g], n) for g in own)
            metrics[f"{core}/maj@{n}"] = fmean(majority(g, seed) for g in own)
    return metrics
