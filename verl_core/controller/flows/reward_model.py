"""Training a reward model on pairs: the role `reward_model` is a value model, whose output at an answer's end is its
reward."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from verl_core.algorithms.bradley_terry import BradleyTerryLoss, bradley_terry, pairs, with_read_out
from verl_core.algorithms.loss import Need
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch
from verl_core.config.schema import RlxConfig
from verl_core.controller.flows.base import Flow
from verl_core.controller.roles import Role
from verl_core.tracking.timing import Timer


class RewardModelFlow(Flow):
    """Bradley-Terry on the chosen and the rejected answer to each prompt."""

    def __init__(self, config: RlxConfig, roles: Mapping[str, Role]):
        super().__init__(config, roles)
        self.model, self.loss = roles["reward_model"], BradleyTerryLoss()

    async def update(self, batch: Batch, step: int, timer: Timer) -> dict[str, float]:
        return await self.epochs(self.model, self.loss, _read_out(batch), step, timer)

    async def measure(self, batch: Batch, timer: Timer) -> dict[str, float]:
        """Over pairs: mean loss, share in which the chosen answer's reward is larger, mean difference of rewards."""
        batch = _read_out(batch)
        out = await self.model.forward(batch, self.loss.needs)
        chosen_P, rejected_P = pairs(produced(batch).pick(out[Need.VALUES]).double(), batch)
        margin_P, _ = pairs(batch["margin_S"], batch)
        return {
            "loss": float(bradley_terry(chosen_P, rejected_P, margin_P).mean()),
            "acc": float((chosen_P > rejected_P).double().mean()),
            "margin": float((chosen_P - rejected_P).mean()),
        }


def _read_out(batch: Batch) -> Batch:
    margins = [t.meta["margin"] for t in batch["trajectory_blob"]]
    return with_read_out(batch).add(margin_S=torch.tensor(margins))
