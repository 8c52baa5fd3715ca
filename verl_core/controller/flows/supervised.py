"""Supervised fine-tuning: cross entropy on the assistant's turns of demonstrations. No reward, no advantage."""

from __future__ import annotations

from collections.abc import Mapping

from verl_core.algorithms.loss import Need
from verl_core.algorithms.losses import SftLoss
from verl_core.batch import Batch
from verl_core.config.schema import RlxConfig
from verl_core.controller.flows.base import LOGP, Flow
from verl_core.controller.roles import Role
from verl_core.tracking.timing import Timer


class SftFlow(Flow):
    """The mean over all learned tokens of a mini-batch, on whatever ranks and in whatever micro-batches they lie."""

    def __init__(self, config: RlxConfig, roles: Mapping[str, Role]):
        super().__init__(config, roles)
        self.loss = SftLoss()

    async def update(self, batch: Batch, step: int, timer: Timer) -> dict[str, float]:
        return await self.epochs(self.actor, self.loss, batch, step, timer)

    async def measure(self, batch: Batch, timer: Timer) -> dict[str, float]:
        """Cross entropy of the learned tokens, nats a token."""
        out = await self.actor.forward(batch, LOGP, self.loss.temperature)
        return {"loss": -float(out[Need.LOGP][batch["mask_N"]].double().mean())}
