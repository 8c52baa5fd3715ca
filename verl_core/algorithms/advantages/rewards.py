"""Where the rewards of a batch stand: on tokens, and added up over sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_core.algorithms.produced import produced
from verl_core.batch import Batch


def token_rewards(batch: Batch, kl_coef: float = 0.0, kl_N: Tensor | None = None) -> Tensor:
    """reward_S on each sequence's last produced token, less kl_coef * kl_N on every one. Shape [N], float32."""
    at = produced(batch)
    reward_M = torch.where(at.last_M, batch["reward_S"].double().index_select(0, at.seq_M), 0.0)
    if kl_N is not None:
        reward_M = reward_M - kl_coef * at.pick(kl_N).double()
    return at.spread(reward_M.float(), batch.N)


def right_answers(batch: Batch) -> Tensor:
    """Which answers are right: acc > 0 where the scorer says it, else a reward > 0. Shape [S], bool."""
    accs = (t.meta.get("acc") for t in batch["trajectory_blob"])
    rewards = batch["reward_S"].tolist()
    return torch.tensor([(reward if acc is None else acc) > 0 for acc, reward in zip(accs, rewards, strict=True)])


def sequence_rewards(batch: Batch) -> Tensor:
    """Each sequence's reward less its KL penalty: the sum of token_reward_N, or reward_S where that column is missing
    or the sequence produced nothing. Shape [S], float64."""
    reward_S = batch["reward_S"].double()
    if "token_reward_N" not in batch:
        return reward_S
    at = produced(batch)
    total_S = torch.zeros_like(reward_S).index_add(0, at.seq_M, at.pick(batch["token_reward_N"]).double())
    return torch.where(at.count_S > 0, total_S, reward_S)
