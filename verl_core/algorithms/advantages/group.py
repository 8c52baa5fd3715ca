"""Estimators that compare the answers to one prompt with each other: one number an answer, on every produced token.

Rewards are reward_S of shape [S]; results have shape [N]. A group of one has nothing to be compared with: advantage 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verl_core.batch import Batch

EPSILON = 1e-6  # beside a group's standard deviation


def grpo(batch: Batch, reward_S: Tensor, norm_by_std: bool = True) -> Tensor:
    """(r - mean) / (std + 1e-6) within the group (arXiv 2402.03300, section 4.1.2).

    std is unbiased. norm_by_std=False leaves out the division (Dr. GRPO, arXiv 2503.20783, section 3.2).
    """
    return on_tokens(batch, standardised(batch, reward_S, norm_by_std))


def grpo_passk(batch: Batch, reward_S: Tensor, norm_by_std: bool = True) -> Tensor:
    """The best of the group less the second best, for the best alone; 0 for all others (pass@k with k the size of the
    group, arXiv 2503.19595: an answer's advantage is what the group's maximum loses without it). norm_by_std divides by
    the group's std + 1e-6."""
    reward_S = reward_S.double()
    by_reward_S = reward_S.argsort(descending=True, stable=True)
    order_S = by_reward_S[batch.group_S[by_reward_S].argsort(stable=True)]  # groups in turn, each from the best down
    count_P = torch.bincount(batch.group_S, minlength=batch.P)
    first_P = (count_P.cumsum(0) - count_P)[count_P > 1]
    best, second = order_S[first_P], order_S[first_P + 1]
    adv_S = torch.zeros_like(reward_S)
    adv_S[best] = reward_S[best] - reward_S[second]
    if norm_by_std:
        adv_S = adv_S / (group_std(batch, reward_S) + EPSILON)
    return on_tokens(batch, adv_S)


def gdpo(batch: Batch, reward_SK: Tensor, weights: Sequence[float], norm_by_std: bool = True) -> Tensor:
    """GRPO's advantage of each of K rewards apart, their weighted sum, whitened over the batch's produced tokens (GDPO,
    arXiv 2601.05242). reward_SK: [S, K]."""
    adv_S = sum(w * standardised(batch, reward_SK[:, k], norm_by_std) for k, w in enumerate(weights))
    assert isinstance(adv_S, Tensor)
    return on_tokens(batch, whitened(batch, adv_S))


def rloo(batch: Batch, reward_S: Tensor) -> Tensor:
    """Reward less the mean of the group's other answers (arXiv 2402.14740): n/(n-1) (r - mean)."""
    count_S = group_size(batch)
    return on_tokens(batch, centred(batch, reward_S) * count_S / (count_S - 1).clamp(min=1))


def opo(batch: Batch, reward_S: Tensor) -> Tensor:
    """Reward less the group's mean weighted by length in produced tokens, sum(l r) / sum(l): the baseline of least
    variance where a gradient's squared norm grows with length (OPO, arXiv 2505.23585)."""
    below_S, length_S = below_best(batch, reward_S), batch.sum_S(batch["mask_N"]).double()
    zero_P = below_S.new_zeros(batch.P)
    total_P = zero_P.index_add(0, batch.group_S, length_S)
    baseline_P = zero_P.index_add(0, batch.group_S, length_S * below_S) / total_P.clamp(min=1)
    return on_tokens(batch, below_S - baseline_P[batch.group_S])


def gpg(batch: Batch, reward_S: Tensor) -> Tensor:
    """alpha (r - mean) (GPG, arXiv 2504.02546): alpha = B / (B - M) makes up for the M of the batch's B answers whose
    group has equal rewards and so no gradient."""
    centred_S = centred(batch, reward_S)
    differs_P = torch.zeros(batch.P, dtype=torch.bool)
    differs_P[batch.group_S[centred_S != 0]] = True
    alpha = batch.S / max(int(differs_P[batch.group_S].sum()), 1)
    return on_tokens(batch, alpha * centred_S)


def standardised(batch: Batch, reward_S: Tensor, norm_by_std: bool = True) -> Tensor:
    """Rewards less their group's mean, by default over the group's std + 1e-6. Shape [S], float64."""
    centred_S = centred(batch, reward_S)
    return centred_S / (group_std(batch, reward_S) + EPSILON) if norm_by_std else centred_S


def centred(batch: Batch, reward_S: Tensor) -> Tensor:
    """Rewards less their group's mean. Shape [S], float64."""
    below_S = below_best(batch, reward_S)
    sum_P = below_S.new_zeros(batch.P).index_add(0, batch.group_S, below_S)
    return below_S - sum_P[batch.group_S] / group_size(batch)


def below_best(batch: Batch, reward_S: Tensor) -> Tensor:
    """Rewards less the best of their group: exactly 0 where all are equal, which a mean of them need not be. Shape [S],
    float64."""
    reward_S = reward_S.double()
    best_P = reward_S.new_zeros(batch.P).scatter_reduce(0, batch.group_S, reward_S, "amax", include_self=False)
    return reward_S - best_P[batch.group_S]


def group_std(batch: Batch, reward_S: Tensor) -> Tensor:
    """The unbiased standard deviation of each sequence's group, 0 for a group of one. Shape [S], float64."""
    centred_S = centred(batch, reward_S)
    square_P = centred_S.new_zeros(batch.P).index_add(0, batch.group_S, centred_S.square())
    return (square_P[batch.group_S] / (group_size(batch) - 1).clamp(min=1)).sqrt()


def group_size(batch: Batch) -> Tensor:
    """How many answers each sequence's group has. Shape [S]."""
    return torch.bincount(batch.group_S, minlength=batch.P)[batch.group_S]


def whitened(batch: Batch, adv_S: Tensor) -> Tensor:
    """`scan.whiten` of what stands alike on all produced tokens of a sequence: statistics are those of the batch's
    tokens. Shape [S]."""
    count_S = batch.sum_S(batch["mask_N"]).double()
    tokens = count_S.sum()
    centred_S = adv_S - (count_S * adv_S).sum() / tokens.clamp(min=1)
    var = (count_S * centred_S.square()).sum() / (tokens - 1).clamp(min=1)
    return centred_S / (var + 1e-8).sqrt()


def on_tokens(batch: Batch, adv_S: Tensor) -> Tensor:
    """One number a sequence on each of its produced tokens, 0 elsewhere. Shape [N], float32."""
    return adv_S.float().index_select(0, batch.seq_N).masked_fill_(~batch["mask_N"], 0.0)
