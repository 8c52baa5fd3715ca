"""The preference flow: reference log-probs, then a preference loss on the answers of a data set that were judged before
(DPO, IPO, KTO, ORPO, SimPO)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.preference.loss import PreferenceLoss
from verl_core.algorithms.preference.mismatched import mismatched
from verl_core.batch import Batch
from verl_core.config.schema import RlxConfig
from verl_core.controller.flows.base import Flow
from verl_core.controller.roles import Role
from verl_core.data.example_rows import CHOSEN
from verl_core.tracking.timing import Timer
from verl_core.training.fsdp.metrics import join, values

REWARDS = "actor/rewards/"


class PreferenceFlow(Flow):
    """From judged answers to optimizer steps. What `judged` gives is all that a flow of its own kind changes."""

    def __init__(self, config: RlxConfig, roles: Mapping[str, Role]):
        super().__init__(config, roles)
        self.preference_loss = PreferenceLoss.from_config(config.algorithm.preference, self.temperature)
        self.renew_every = config.algorithm.preference.ref_update_freq or 0

    def judged(self, batch: Batch) -> Batch:
        """The answers that the loss compares, with win_S."""
        return batch.add(win_S=(batch["sample_S"] == CHOSEN).float())

    async def reference(self, judged: Batch, timer: Timer) -> Tensor:
        """Log-probs [N] of what a log-ratio is taken to."""
        return await self.reference_logp(judged, timer)

    async def update(self, batch: Batch, step: int, timer: Timer) -> dict[str, float]:
        return await self.learn(self.judged(batch), step, timer)

    async def learn(self, judged: Batch, step: int, timer: Timer) -> dict[str, float]:
        """All optimizer steps on these answers, and their metrics; none where there are no answers."""
        metrics = {}
        if judged.S:
            loss = await self._loss(judged, timer)
            metrics = await self.epochs(self.actor, loss, judged, step, timer)
        if self.renew_every and step % self.renew_every == 0:
            with timer.phase("ref"):
                await self.actor.renew_reference()
        return metrics

    async def measure(self, batch: Batch, timer: Timer) -> dict[str, float]:
        """`loss`, `acc` and `margin` of held-out answers, as actor/loss and actor/rewards/*."""
        judged = self.judged(batch)
        loss = await self._loss(judged, timer)
        share, metrics = loss(await self.present(judged, timer), judged, Totals.of(judged))
        found = values(join([metrics]))
        return {
            "loss": float(share),
            "acc": found[f"{REWARDS}accuracy"],
            "margin": found[f"{REWARDS}margin"],
        }

    async def _loss(self, judged: Batch, timer: Timer) -> PreferenceLoss:
        """The loss of these answers, to which what it reads is added."""
        loss = self.preference_loss
        if loss.has_reference:
            judged.add(ref_logp_N=await self.reference(judged, timer))
        if loss.name != "kto":
            return loss
        baseline = await self._kl_baseline(mismatched(judged), timer)
        return replace(loss, options=replace(loss.options, kl_baseline=baseline))

    async def _kl_baseline(self, others: Batch, timer: Timer) -> float:
        """KTO's z0: mean log-ratio of these answers, before the optimizer steps on their batch; 0 where it is below, or
        where there are none."""
        if others.S == 0:
            return 0.0
        ratio_N = (await self.present(others, timer))[Need.LOGP] - await self.reference(others, timer)
        return max(0.0, float(others.sum_S(ratio_N.double() * others["mask_N"]).mean()))
