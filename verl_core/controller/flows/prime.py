"""PRIME: a language model learns beside the actor which answers are right, and so what each token of them is worth."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from verl_core.algorithms.advantages import sequence_rewards
from verl_core.algorithms.loss import Need
from verl_core.algorithms.prime import ImplicitRewardLoss, prime_advantage, within_band
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch
from verl_core.config.schema import RlxConfig
from verl_core.controller.flows.base import LOGP
from verl_core.controller.flows.policy import Pass, PolicyFlow
from verl_core.controller.roles import Role, together
from verl_core.tracking.timing import Timer


class PrimeFlow(PolicyFlow):
    """The policy flow with process rewards of the reward model as it is before its own update (one pass a step)."""

    def __init__(self, config: RlxConfig, roles: Mapping[str, Role]):
        super().__init__(config, roles)
        self.how, self.reward_model = config.algorithm.prime, roles["reward_model"]
        self.reward_loss = ImplicitRewardLoss(self.how.beta)

    def passes(self, batch: Batch, timer: Timer) -> list[Pass]:
        """With the one that adds outcome_S, process_reward_N and reward_ref_logp_N."""
        outcomes = [t.reward if (acc := t.meta.get("acc")) is None else acc for t in batch["trajectory_blob"]]
        batch.add(outcome_S=torch.tensor(outcomes, dtype=torch.float32).clamp(0, 1))
        return [*super().passes(batch, timer), (self.reward_model, self._judge(batch, timer))]

    async def _judge(self, batch: Batch, timer: Timer) -> None:
        with timer.phase("reward_model"):
            logp_N = (await self.reward_model.forward(batch, LOGP))[Need.LOGP]
            ref_logp_N = (await self.reward_model.forward(batch, LOGP, snapshot="ref"))[Need.LOGP]
        batch.add(reward_ref_logp_N=ref_logp_N, process_reward_N=self.how.beta * (logp_N - ref_logp_N))

    def estimate(self, batch: Batch) -> None:
        advantages_N, returns_N = prime_advantage(batch, batch["process_reward_N"], sequence_rewards(batch), self.how)
        batch.add(advantages_N=advantages_N, returns_N=returns_N)

    def advantage(self, batch: Batch) -> dict[str, float]:
        process_M = produced(batch).pick(batch["process_reward_N"]).double()
        mean = float(process_M.mean()) if len(process_M) else 0.0
        return super().advantage(batch) | {"reward_model/process_reward": mean}

    async def update(self, batch: Batch, step: int, timer: Timer) -> dict[str, float]:
        """Both updates, on prompts that are neither too easy nor too hard."""
        kept_S = within_band(batch, batch["outcome_S"], self.how.accuracy_lower_bound, self.how.accuracy_upper_bound)
        kept = batch.select(kept_S)
        metrics = {"reward_model/kept_prompts": kept.P / batch.P}
        for part in await together(
            (self.reward_model, self.epochs(self.reward_model, self.reward_loss, kept, step, timer)),
            (self.actor, super().update(kept, step, timer)),
        ):
            metrics |= part
        return metrics
