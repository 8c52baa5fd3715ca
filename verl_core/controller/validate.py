"""Validation: every held-out prompt once (or n times), in file order, scored like training answers."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from verl_core.batch import Trajectory
from verl_core.controller.sources import GroupMaker
from verl_core.data.dataset import PromptDataset
from verl_core.rollout.protocol import Sampling


@dataclass
class Validator:
    dataset: PromptDataset
    maker: GroupMaker
    sampling: Sampling
    n: int

    async def run(self) -> tuple[dict[str, float], list[list[Trajectory]]]:
        """Metrics, and the groups they come from. Draws do not depend on the step, so that scores of different steps
        differ only by the weights."""
        rows = self.dataset.take(range(len(self.dataset)))
        groups = await asyncio.gather(*(self.maker.make(row, self.n, self.sampling, "validation", 0) for row in rows))
        return validation_metrics(groups), list(groups)


def validation_metrics(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """val/test_score/<source> (mean reward) and, where the scorer says what is right, val/acc/<source>; for n > 1 also
    val-core/<source>/reward/{mean,best,maj}@n: of a prompt's n answers the mean, the best, and the reward of the answer
    given most often (the earliest among equals)."""
    by_source: dict[str, list[Sequence[Trajectory]]] = defaultdict(list)
    for group in groups:
        by_source[group[0].meta["data_source"]].append(group)
    metrics: dict[str, float] = {}
    for source, own in sorted(by_source.items()):
        answers = [t for g in own for t in g]
        metrics[f"val/test_score/{source}"] = fmean(t.reward for t in answers)
        judged = [t.meta["acc"] for t in answers if t.meta["acc"] is not None]
        if judged:
            metrics[f"val/acc/{source}"] = fmean(judged)
        metrics[f"val/response_length/{source}"] = fmean(sum(t.mask) for t in answers)
        n = len(own[0])
        if n > 1:
            core = f"val-core/{source}/reward"
            metrics[f"{core}/mean@{n}"] = fmean(fmean(t.reward for t in g) for g in own)
            metrics[f"{core}/best@{n}"] = fmean(max(t.reward for t in g) for g in own)
            metrics[f"{core}/maj@{n}"] = fmean(_majority(g) for g in own)
    return metrics


def _majority(group: Sequence[Trajectory]) -> float:
    given = [t.meta["pred"] if t.meta["pred"] is not None else t.meta["answer"] for t in group]
    winner = Counter(given).most_common(1)[0][0]
    return group[given.index(winner)].reward
