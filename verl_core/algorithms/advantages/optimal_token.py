"""The optimal token baseline: one for each place in the answers to a prompt, weighed by the size of their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_core.algorithms.advantages.scan import discounted_sum, prefix_sum
from verl_core.algorithms.produced import Produced, produced
from verl_core.batch import Batch

EPSILON = 1e-8  # beside a sum of weights


def optimal_token_baseline(
    batch: Batch,
    token_reward_N: Tensor,
    logp_N: Tensor,
    sum_p_sq_N: Tensor,
    turns: bool = False,
    weight_M: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """G_t less B*_t = sum(G_t W_t) / sum(W_t) over the group's answers that have a token at place t (OTB, arXiv
    2602.07078). W_t adds up 1 - 2 pi_j + sum_v pi_v^2 for j <= t: the squared norms of the gradients in logits.

    A token's place is its distance from the end of the prompt, or with `turns` (tool-integrated reasoning) its number
    among the produced tokens. Where no other answer of the group has one, B* is 0: a baseline of its own return alone
    would leave nothing. weight_M: importance weights of the rollout, squared into W. Shapes [N] but for weight_M.
    Returns advantages_N and returns_N.
    """
    at = produced(batch)
    return_M = discounted_sum(at.pick(token_reward_N).double(), at, 1.0)
    energy_M = 1 - 2 * at.pick(logp_N).double().exp() + at.pick(sum_p_sq_N).double()
    weight = prefix_sum(energy_M if weight_M is None else energy_M * weight_M.double().square(), at)
    place_M = places(batch, at, turns)
    width = int(place_M.max()) + 1 if at.M else 0
    cell_M = batch.group_S[at.seq_M] * width + place_M  # the answers of a group meet in a cell
    empty = return_M.new_zeros(batch.P * width)
    top, total = (empty.index_add(0, cell_M, value) for value in (return_M * weight, weight))
    alone = torch.bincount(cell_M, minlength=len(empty)) < 2
    baseline_M = torch.where(alone, 0.0, top / (total + EPSILON))[cell_M]
    return at.spread((return_M - baseline_M).float(), batch.N), at.spread(return_M.float(), batch.N)


def places(batch: Batch, at: Produced, turns: bool) -> Tensor:
    """Where in its answer each produced token stands, from 0. Shape [M]."""
    start_S = at.count_S.cumsum(0) - at.count_S
    number_M = torch.arange(at.M, device=at.seq_M.device) - start_S[at.seq_M]
    if turns:
        return number_M
    position_M = batch.position_N[at.index_M]
    return position_M - position_M[start_S[at.seq_M]]
