"""PF-PPO: a batch drawn anew from itself, by reward. Whole rows are drawn, so that each keeps its own advantages."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from verl_core.batch import Batch

Method = Literal["pow", "max_min", "max_random"]


def reweighted(batch: Batch, method: Method, power: float, generator: torch.Generator) -> Batch:
    """As many answers to each prompt as before, drawn from them with replacement and `draw_weights` (policy filtration,
    arXiv 2409.06957: train where the reward can be relied on). Every column goes with its row, and the order of the
    groups stays. Reads reward_S."""
    weight_S = draw_weights(batch, method, power)
    drawn_S = torch.arange(batch.S)
    for p in range(batch.P):
        own = (batch.group_S == p).nonzero()[:, 0]
        if len(own) > 1:
            drawn_S[own] = own[torch.multinomial(weight_S[own], len(own), replacement=True, generator=generator)]
    return batch.select(drawn_S)


def draw_weights(batch: Batch, method: Method, power: float = 2.0) -> Tensor:
    """How likely each answer is to be drawn, up to a factor of its group. Shape [S], float64.

    pow: |r|^power. max_min (the paper's best-worst): the group's best and worst answers alike, no others. max_random
    (best-random): 0.4 for the best, 0.1 for others. 1e-8 is added, so that a group of zeros is drawn from evenly.
    """
    reward_S = batch["reward_S"].double()
    best_S, worst_S = (
        torch.zeros(batch.P, dtype=torch.float64)
        .scatter_reduce(0, batch.group_S, reward_S, how, include_self=False)[batch.group_S]
        .eq(reward_S)
        for how in ("amax", "amin")
    )
    weights = {
        "pow": reward_S.abs().pow(power),
        "max_min": (best_S | worst_S).double(),
        "max_random": torch.where(best_S, 0.4, 0.1).double(),
    }
    return weights[method] + 1e-8
