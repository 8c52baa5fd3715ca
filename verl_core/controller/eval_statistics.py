"""What an evaluation reports of scored answers: by data source and overall, with intervals, and of two models the
paired difference. All shares are of answers, all means over questions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np

from verl_core.config.errors import UserError
from verl_core.controller.scores import Answer, best_at, by_source, ks_of, majority, mean_reward, pass_at, right_counts
from verl_core.controller.seeds import draw_seed

OVERALL = "overall"
RESAMPLES = 10_000
_BLOCK = 1 << 22  # indices drawn at a time: bounds memory at 32 MB

Groups = Sequence[Sequence[Answer]]


def statistics(groups: Groups, seed: int) -> dict[str, dict[str, Any]]:
    """The measures of each data source and, last, of all questions together. Every question has n answers."""
    return {name: _measures(own, seed) for name, own in {**by_source(groups), OVERALL: groups}.items()}


def differences(first: Groups, second: Groups, seed: int) -> dict[str, dict[str, Any]]:
    """second - first in mean reward, question by question, over the questions that both have answered.

    `better`, `worse`, `same` count questions. Raises UserError where no question is common.
    """
    before = {g[0].question: mean_reward(g) for g in first}
    common = [g for g in second if g[0].question in before]
    if not common:
        raise UserError(
            "no question was answered by both: their tokenizers leave them different prompts within "
            "data.max_prompt_length",
            "raise it, or set data.truncation=left",
        )
    parts = {**by_source(common), OVERALL: common}
    return {name: _paired([mean_reward(g) - before[g[0].question] for g in own], seed) for name, own in parts.items()}


def interval(values: Sequence[float], seed: int) -> list[float] | None:
    """95 % interval of the mean: the percentile bootstrap over questions, `RESAMPLES` resamples drawn by the seed. None
    below two values, of which nothing can be said."""
    n = len(values)
    if n < 2:
        return None
    draw = np.random.default_rng(draw_seed(seed, "bootstrap"))
    sample = np.asarray(values, dtype=np.float64)
    block = max(1, _BLOCK // n)
    sizes = [min(block, RESAMPLES - start) for start in range(0, RESAMPLES, block)]
    means = np.concatenate([sample[draw.integers(n, size=(size, n))].mean(axis=1) for size in sizes])
    low, high = np.percentile(means, [2.5, 97.5])
    return [float(low), float(high)]


def _measures(groups: Groups, seed: int) -> dict[str, Any]:
    answers = [a for g in groups for a in g]
    n = len(groups[0])
    means = [mean_reward(g) for g in groups]
    rights = right_counts(groups)
    judged = [a.acc for a in answers if a.acc is not None]
    return {
        "questions": len(groups),
        "answers": len(answers),
        "n": n,
        "mean": fmean(means),
        "std": stdev(means) if len(means) > 1 else None,
        "ci95": interval(means, seed),
        "best": {str(k): fmean(best_at([a.reward for a in g], k) for g in groups) for k in ks_of(n)},
        "maj": fmean(majority(g, seed) for g in groups),
        "pass": rights and {str(k): fmean(pass_at(n, right, k) for right in rights) for k in ks_of(n)},
        "acc": fmean(judged) if judged else None,
        "length": fmean(a.tokens for a in answers),
        "truncated": fmean(a.finish == "length" for a in answers),
        "failed": fmean(a.error is not None for a in answers),
    }


def _paired(differences: Sequence[float], seed: int) -> dict[str, Any]:
    return {
        "questions": len(differences),
        "mean": fmean(differences),
        "std": stdev(differences) if len(differences) > 1 else None,
        "ci95": interval(differences, seed),
        "better": sum(d > 0 for d in differences),
        "worse": sum(d < 0 for d in differences),
        "same": sum(d == 0 for d in differences),
    }
