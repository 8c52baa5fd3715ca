"""The policy-gradient flow: old log-probs, reference log-probs and values, then the advantage, then the policy loss
(and the critic's) on mini-batches."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from verl_core.algorithms.advantages import compute_advantage, right_answers, token_rewards
from verl_core.algorithms.advantages.reweight import reweighted
from verl_core.algorithms.correction import correct, mask_not_finite
from verl_core.algorithms.entropy import entropy_controller
from verl_core.algorithms.kl import kl_controller, kl_estimate, mean_kl
from verl_core.algorithms.loss import Loss, Need
from verl_core.algorithms.losses import PolicyLoss, ValueLoss
from verl_core.algorithms.mismatch import finished, mismatch
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch
from verl_core.config.effective import advantage_needs, kl_terms, settled, uses_reference
from verl_core.config.loss_terms import FULL_KL
from verl_core.config.rollout_correction import rejections_of, weights_of
from verl_core.config.schema import RlxConfig
from verl_core.controller.flows.base import LOGP, Flow, critic_only_steps, of_the_sampler
from verl_core.controller.roles import Role, together
from verl_core.controller.seeds import draw_seed
from verl_core.tracking.timing import Timer
from verl_core.training.fsdp.metrics import join, values

VALUES = frozenset({Need.VALUES})
type Pass = tuple[Role, Coroutine[Any, Any, None]]


class PolicyFlow(Flow):
    """Everything that turns a batch of scored answers into optimizer steps."""

    def __init__(self, config: RlxConfig, roles: Mapping[str, Role]):
        super().__init__(config, roles)
        self.critic = roles.get("critic")
        self.kl_control = kl_controller(config.algorithm.kl_ctrl)
        self.entropy_control = entropy_controller(config.actor.entropy_ctrl, config.actor.entropy_coeff)
        penalty = kl_terms(config).get("algorithm.kl_penalty")
        self.samples_kl = uses_reference(config) and set(kl_terms(config).values()) != {FULL_KL}
        beside = {Need.SUM_P_SQ: "sum_p_sq" in advantage_needs(config), Need.FULL_KL: penalty == FULL_KL}
        self.beside = frozenset(need for need, wanted in beside.items() if wanted)  # of the actor's pass
        self.policy_loss = PolicyLoss.from_config(config.actor, config.rollout.temperature)
        self.value_loss = ValueLoss.from_config(config.critic, config.actor.loss_scale_factor)
        self.weights = weights_of(config.algorithm.rollout_correction)
        self.rejections = rejections_of(config.algorithm.rollout_correction)

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "kl_control": self.kl_control.state(),
            "entropy_control": self.entropy_control.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self.kl_control.load_state(state["kl_control"])
        self.entropy_control.load_state(state.get("entropy_control", {}))

    async def prepare(self, batch: Batch, timer: Timer) -> Batch:
        """Adds old_logp_N and, where the algorithm needs them, ref_logp_N and values_N. Tokens for which the engine
        gave no finite log-prob leave mask_N."""
        mask_not_finite(batch)
        await together(*self.passes(batch, timer))
        return batch

    def passes(self, batch: Batch, timer: Timer) -> list[Pass]:
        """What the roles are asked of a batch."""
        passes: list[Pass] = [(self.actor, self._old_logp(batch, timer))]
        if self.samples_kl:
            passes.append((self.roles.get("ref", self.actor), self._ref_logp(batch, timer)))
        if self.critic is not None:
            passes.append((self.critic, self._values(batch, self.critic, timer)))
        return passes

    async def _old_logp(self, batch: Batch, timer: Timer) -> None:
        if self.old_from_rollout:
            batch.add(old_logp_N=batch["rollout_logp_N"])
            if not self.beside:
                return
        out = await self.present(batch, timer, LOGP | self.beside)
        batch.add(**{need.value: out[need] for need in self.beside})
        if not self.old_from_rollout:
            batch.add(old_logp_N=of_the_sampler(batch, out[Need.LOGP]))

    async def _ref_logp(self, batch: Batch, timer: Timer) -> None:
        batch.add(ref_logp_N=await self.reference_logp(batch, timer))

    async def _values(self, batch: Batch, critic: Role, timer: Timer) -> None:
        with timer.phase("values"):
            out = await critic.forward(batch, VALUES)
        batch.add(values_N=out[Need.VALUES])

    def advantage(self, batch: Batch) -> dict[str, float]:
        """Adds token_reward_N, advantages_N (and returns_N); returns the metrics of a KL penalty in the reward."""
        metrics: dict[str, float] = {}
        kl_N: Tensor | None = None
        coef = 0.0
        if self.config.algorithm.use_kl_in_reward:
            coef = self.kl_control.coef
            kl_N = self._kl_N(batch)
            at = produced(batch)
            kl, sequences = mean_kl(at.pick(kl_N), at)
            self.kl_control.update(kl, sequences)
            metrics = {"actor/reward_kl_penalty": kl, "actor/reward_kl_penalty_coeff": coef}
        if self.policy_loss.positive_coef:
            batch.add(positive_S=right_answers(batch))
        batch.add(token_reward_N=token_rewards(batch, coef, kl_N))
        self.estimate(batch)
        return metrics

    def estimate(self, batch: Batch) -> None:
        """Adds advantages_N, and returns_N where a critic learns, from token_reward_N."""
        compute_advantage(settled(self.config.algorithm.adv_estimator), batch, self.config.algorithm)

    def _kl_N(self, batch: Batch) -> Tensor:
        """KL from the reference, nats a token: estimated, or the whole vocabulary's."""
        if Need.FULL_KL in self.beside:
            return batch[Need.FULL_KL.value]
        return kl_estimate(self.config.algorithm.kl_penalty, batch["old_logp_N"], batch["ref_logp_N"])

    async def update(self, batch: Batch, step: int, timer: Timer) -> dict[str, float]:
        """All optimizer steps of one batch: critic and, past its warm-up, actor. Returns their metrics, means over the
        optimizer steps (counts: sums); none where nothing was produced."""
        if self.config.algorithm.use_pf_ppo:
            batch = self._drawn_anew(batch, step)
        policy_loss, metrics = self._against_rollout(batch)
        policy_loss = replace(policy_loss, entropy_coeff=self.entropy_control.coef)
        work = []
        if self.critic is not None:
            work.append((self.critic, self.epochs(self.critic, self.value_loss, batch, step, timer)))
        if step > critic_only_steps(self.config):
            work.append((self.actor, self.epochs(self.actor, policy_loss, batch, step, timer)))
        for part in await together(*work):
            metrics |= part
        if "actor/entropy" in metrics:
            metrics["actor/entropy_coeff"] = policy_loss.entropy_coeff
            self.entropy_control.update(metrics["actor/entropy"])
        return finished(metrics)

    def _drawn_anew(self, batch: Batch, step: int) -> Batch:
        generator = torch.Generator().manual_seed(draw_seed(self.config.trainer.seed, "pf_ppo", step))
        how = self.config.algorithm.pf_ppo
        return reweighted(batch, how.reweight_method, how.weight_pow, generator)

    def _against_rollout(self, batch: Batch) -> tuple[PolicyLoss, dict[str, float]]:
        """The policy loss with the rollout correction, and how far the engine is from the trainer where old log-probs
        already say it. Where they are the engine's own, the update measures both, with the weights it has."""
        if self.old_from_rollout:
            return replace(self.policy_loss, rejections=self.rejections), {}
        at = produced(batch)
        logp_M, rollout_logp_M = at.pick(batch["old_logp_N"]), at.pick(batch["rollout_logp_N"])
        metrics = values(join([mismatch(logp_M, rollout_logp_M, at)])) if at.M else {}
        if self.weights is None and not self.rejections:
            return self.policy_loss, metrics
        factor_N, corrected = correct(batch, self.weights, self.rejections)
        batch.add(correction_N=factor_N)
        return replace(self.policy_loss, corrected=True), metrics | corrected

    def loss_for(self, loss: Loss, mini: Batch, step: int, epoch: int, first: bool) -> Loss:
        if not isinstance(loss, PolicyLoss):
            return loss
        loss.mark(mini, draw_seed(self.config.trainer.seed, "policy_loss", step, epoch))
        # Before the first step the weights are still those that sampled: only there is the mismatch pure.
        return replace(loss, log_mismatch=True) if first and self.old_from_rollout else loss
