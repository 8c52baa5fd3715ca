"""What n scored answers to a question say: mean, best of k, majority, pass@k. Plain numbers, no tensor.

Estimators over k of n answers are the unbiased ones: the mean over all k-subsets, in closed form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean
from typing import TYPE_CHECKING, Any

from verl_core.controller.seeds import draw_seed

if TYPE_CHECKING:  # scores are counted without loading torch
    from verl_core.batch import Trajectory


@dataclass(frozen=True, slots=True)
class Answer:
    """What counts of one scored answer. `tokens`: those the model produced. `error`: why scoring it failed."""

    question: str  # uid of the prompt
    data_source: str
    sample: int
    reward: float
    acc: float | None
    pred: str | None
    text: str
    tokens: int
    finish: str  # stop | length | abort
    error: str | None = None


def answer_of(t: Trajectory) -> Answer:
    meta: dict[str, Any] = t.meta
    return Answer(
        question=t.group,
        data_source=meta["data_source"],
        sample=t.sample,
        reward=t.reward,
        acc=meta["acc"],
        pred=meta["pred"],
        text=meta["answer"],
        tokens=sum(t.mask),
        finish=t.finish,
        error=meta.get("score_error"),
    )


def by_source(groups: Sequence[Sequence[Answer]]) -> dict[str, list[Sequence[Answer]]]:
    """The groups of each data source, sources by name."""
    found: dict[str, list[Sequence[Answer]]] = defaultdict(list)
    for group in groups:
        found[group[0].data_source].append(group)
    return dict(sorted(found.items()))


def mean_reward(group: Sequence[Answer]) -> float:
    return fmean(a.reward for a in group)


def best_at(rewards: Sequence[float], k: int) -> float:
    """Expected largest reward among k of the n given, drawn without replacement; 1 <= k <= n.

    The i-th smallest (from 0) is the largest in C(i, k-1) of the C(n, k) subsets.
    """
    subsets = comb(len(rewards), k)
    return sum(comb(i, k - 1) / subsets * reward for i, reward in enumerate(sorted(rewards)) if i >= k - 1)


def pass_at(n: int, right: int, k: int) -> float:
    """Chance that k of n answers, `right` of them right, hold a right one: 1 - C(n-right, k) / C(n, k)
    (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    return 1 - comb(n - right, k) / comb(n, k)


def majority(group: Sequence[Answer], seed: int) -> float:
    """Mean reward of the answers that agree with the most frequent one.

    Answers are told apart by what the scorer read out of them; those it could read nothing out of have no vote, unless
    that is all of them: then whole texts vote. Of equally frequent ones a draw keyed by the seed and the question
    decides, whatever order they came in.
    """
    given = [(a.pred, a) for a in group if a.pred is not None] or [(a.text, a) for a in group]
    rewards: dict[str, list[float]] = {}
    for vote, answer in given:
        rewards.setdefault(vote, []).append(answer.reward)
    most = max(map(len, rewards.values()))
    tied = [vote for vote, those in rewards.items() if len(those) == most]
    winner = min(tied, key=lambda vote: draw_seed(seed, "majority", group[0].question, vote))
    return fmean(rewards[winner])


def ks_of(n: int) -> list[int]:
    """The k that are reported of n answers: powers of two below n, and n."""
    return [k for k in (1 << e for e in range(n.bit_length())) if k < n] + [n]


def right_counts(groups: Sequence[Sequence[Answer]]) -> list[int] | None:
    """How many answers to each question are right; None where that is no matter of yes or no.

    An answer is right by the scorer's accuracy, or by its reward where it gives none; both count as yes or no when
    they are 0 or 1. One that could not be scored is not right.
    """
    marks = [[a.reward if a.acc is None else a.acc for a in group] for group in groups]
    if any(mark not in (0, 1) for own in marks for mark in own):
        return None
    return [int(sum(own)) for own in marks]
