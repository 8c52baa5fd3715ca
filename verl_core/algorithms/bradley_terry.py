"""Reward models from comparisons: the Bradley-Terry loss, and the batch on which an answer's reward is read off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from verl_core.algorithms.loss import Metric, Need, Totals, mean_of
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch


def with_read_out(batch: Batch) -> Batch:
    """The batch's sequences with one token more, the only one that has mask 1. What an engine says of token i comes
    from the hidden state at i-1, so that there the value head speaks of the whole sequence, its last token included.
    Which token it is does not matter: nothing comes after it. Keeps the columns that have one entry a sequence."""
    last_S = batch.cu_seqlens_S1[1:] - 1
    longer_S = batch.length_S + 1
    place_S = longer_S.cumsum(0) - 1
    mask_N = torch.zeros(batch.N + batch.S, dtype=torch.bool).index_fill(0, place_S, True)
    ids_N = batch["ids_N"].new_empty(len(mask_N))
    ids_N[~mask_N], ids_N[mask_N] = batch["ids_N"], batch["ids_N"][last_S]
    kept = {name: value for name, value in batch.columns.items() if name.endswith("_S")}
    return Batch(longer_S, batch.group_S, kept | {"ids_N": ids_N, "mask_N": mask_N})


def pairs(value_S: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """A number of each pair's chosen answer (sample 0) and rejected one (sample 1), [P] each. Raises ValueError for a
    batch that has anything but whole pairs."""
    order = torch.argsort(2 * batch.group_S + batch["sample_S"])
    two = batch["sample_S"][order].tolist() == [0, 1] * (batch.S // 2)
    if not two or not torch.equal(batch.group_S[order[::2]], batch.group_S[order[1::2]]):
        raise ValueError("a batch for a reward model has a chosen and a rejected answer of each prompt")
    return value_S[order[::2]], value_S[order[1::2]]


def bradley_terry(chosen_P: Tensor, rejected_P: Tensor, margin_P: Tensor) -> Tensor:
    """-log sigmoid(r_w - r_l - margin), [P] (Bradley and Terry 1952; InstructGPT, arXiv 2203.02155, eq. 1; the margin
    is Llama 2's, arXiv 2307.09288, eq. 2)."""
    return softplus(margin_P - (chosen_P - rejected_P))


@dataclass(frozen=True)
class BradleyTerryLoss:
    """Mean over the mini-batch's pairs. Reads mask_N (`with_read_out`), sample_S and margin_S."""

    temperature: float = 1.0
    needs: frozenset[Need] = frozenset({Need.VALUES})
    whole_groups: bool = True

    def __call__(self, out: Mapping[Need, Tensor], batch: Batch, totals: Totals) -> tuple[Tensor, dict[str, Metric]]:
        chosen_P, rejected_P = pairs(produced(batch).pick(out[Need.VALUES]), batch)
        margin_P, _ = pairs(batch["margin_S"], batch)
        loss = bradley_terry(chosen_P, rejected_P, margin_P).sum() / max(totals.groups, 1)
        return loss, {
            "reward_model/rewards/chosen": mean_of(chosen_P),
            "reward_model/rewards/rejected": mean_of(rejected_P),
            "reward_model/rewards/margin": mean_of(chosen_P - rejected_P),
            "reward_model/rewards/accuracy": mean_of((chosen_P > rejected_P).float()),
        }
