"""What the rewards of a rolled-out group say of its answers."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_core.batch import Batch


def best_and_worst(batch: Batch, reward_S: Tensor) -> Tensor:
    """Of each group the first answer with the largest reward and the first with the smallest, [G, 2]. Groups without a
    difference (all rewards equal, a single answer) or with a reward that is not a number are left out."""
    pairs = [
        torch.stack([own[reward_S[own].argmax()], own[reward_S[own].argmin()]])
        for own in _groups(batch)
        if bool(reward_S[own].max() > reward_S[own].min())
    ]
    return torch.stack(pairs) if pairs else torch.zeros(0, 2, dtype=torch.int64)


def win_rate(batch: Batch, reward_S: Tensor) -> Tensor:
    """Share of its group's answers that an answer beats, ties and itself as half: the estimate of P(answer > policy)
    from the policy's own answers (arXiv 2405.00675, section 4). Mean over a group: 1/2. Shape [S], float32."""
    rate_S = torch.empty_like(reward_S, dtype=torch.float32)
    for own in _groups(batch):
        reward = reward_S[own]
        beats = (reward[:, None] > reward).float() + 0.5 * (reward[:, None] == reward).float()
        rate_S[own] = beats.mean(1)
    return rate_S


def _groups(batch: Batch) -> tuple[Tensor, ...]:
    """The sequences of each group."""
    order = batch.group_S.argsort(stable=True)
    return order.split(torch.bincount(batch.group_S, minlength=batch.P).tolist()) if batch.S else ()
