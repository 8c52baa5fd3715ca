"""The losses a training engine is handed: which quantities they need, and their share of the mini-batch loss.

Each reads its columns from the micro-batch, works on produced tokens only and divides by the mini-batch's Totals.
Metric names are veRL's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from verl_core.algorithms.aggregate import aggregate
from verl_core.algorithms.correction import keep, log_ratio
from verl_core.algorithms.kl import kl_estimate
from verl_core.algorithms.loss import Metric, Need, Totals, mean_of
from verl_core.algorithms.mismatch import mismatch
from verl_core.algorithms.policy_loss import Losses, Options, PolicyLossFn, Tokens
from verl_core.algorithms.policy_loss.covariance import SELECTIONS
from verl_core.algorithms.produced import Produced, produced
from verl_core.batch import Batch
from verl_core.config import catalogue
from verl_core.config.errors import UserError
from verl_core.config.loss_terms import FULL_KL
from verl_core.config.rollout_correction import Rejection
from verl_core.config.schema import ActorConfig, CriticConfig


def per_token(name: str, found: object, tokens: int) -> Losses:
    """What a policy loss returned. Raises UserError where it is not one number a token and diagnostics."""
    if not (isinstance(found, tuple) and len(found) == 2 and getattr(found[0], "shape", None) == (tokens,)):
        what = getattr(found[0] if isinstance(found, tuple) and found else found, "shape", type(found).__name__)
        raise UserError(
            f"policy loss {name!r} returned {what}, not ({tokens} losses of tokens, diagnostics)",
            "see docs/algorithms.md, Your own",
        )
    return found


def _total(share: Tensor) -> Metric:
    return Metric(share.detach(), how="sum")


def _resolved[T](value: T | None, key: str) -> T:
    if value is None:
        raise ValueError(f"{key} is null: build losses from the effective configuration, where presets are filled in")
    return value


def _options(cfg: ActorConfig) -> Options:
    chosen = cfg.policy_loss
    return Options(
        low=cfg.clip_ratio if cfg.clip_ratio_low is None else cfg.clip_ratio_low,
        high=cfg.clip_ratio if cfg.clip_ratio_high is None else cfg.clip_ratio_high,
        c=cfg.clip_ratio_c,
        tau_pos=cfg.tau_pos,
        tau_neg=cfg.tau_neg,
        clip_cov_ratio=chosen.clip_cov_ratio,
        clip_cov_lb=chosen.clip_cov_lb,
        clip_cov_ub=chosen.clip_cov_ub,
        kl_cov_ratio=chosen.kl_cov_ratio,
        ppo_kl_coef=chosen.ppo_kl_coef,
        dro_beta=chosen.dro_beta,
    )


@dataclass(frozen=True)
class PolicyLoss:
    """The actor's loss: policy loss + kl_coef * KL(policy, reference) - entropy_coeff * entropy, each aggregated alike;
    with positive_coef, plus that times the mean cross entropy of the right answers' tokens (VAPO, arXiv 2504.05118,
    section 4.3).

    The policy loss of each token is multiplied by its factor of the rollout correction; KL and entropy are not. Reads
    old_logp_N, advantages_N, mask_N; for an estimated KL, ref_logp_N; with corrected, correction_N; with rejections or
    log_mismatch, rollout_logp_N; with positive_coef, positive_S; what `mark` adds.
    """

    loss_mode: str = "vanilla"
    options: Options = field(default_factory=Options)
    agg_mode: str = "token-mean"
    scale: float | None = None  # divisor of seq-mean-token-sum-norm
    entropy_coeff: float = 0.0
    positive_coef: float = 0.0
    kl_type: str | None = None  # None: no KL in the loss
    kl_coef: float = 0.001
    temperature: float = 1.0
    want_entropy: bool = True  # log the entropy also where the loss does not use it
    log_mismatch: bool = False  # log how far the rollout engine's log-probs are from these weights'
    corrected: bool = False  # each token has a factor of its own, worked out before the update
    rejections: tuple[Rejection, ...] = ()  # tokens left out because these weights and the engine disagree too far

    @classmethod
    def from_config(cls, cfg: ActorConfig, temperature: float, want_entropy: bool = True) -> Self:
        """From an effective configuration's actor and rollout.temperature. Raises ValueError for a null preset,
        UserError for an unknown loss_mode."""
        loss_mode = _resolved(cfg.policy_loss.loss_mode, "actor.policy_loss.loss_mode")
        catalogue.entry("policy_loss", loss_mode)  # refused here rather than on the ranks
        use_kl = _resolved(cfg.use_kl_loss, "actor.use_kl_loss")
        return cls(
            loss_mode=loss_mode,
            options=_options(cfg),
            agg_mode=_resolved(cfg.loss_agg_mode, "actor.loss_agg_mode"),
            scale=cfg.loss_scale_factor,
            entropy_coeff=cfg.entropy_coeff,
            positive_coef=_resolved(cfg.positive_lm_coef, "actor.positive_lm_coef"),
            kl_type=cfg.kl_loss_type if use_kl else None,
            kl_coef=cfg.kl_loss_coef,
            temperature=temperature,
            want_entropy=want_entropy,
        )

    @property
    def needs(self) -> frozenset[Need]:
        entropy = {Need.ENTROPY} if self.want_entropy or self.entropy_coeff != 0 else set()
        kl = {Need.FULL_KL} if self.kl_type == FULL_KL else set()
        return frozenset({Need.LOGP} | entropy | kl)

    def mark(self, mini: Batch, seed: int) -> None:
        """Adds to a whole mini-batch what a part of it could not tell, before it is split: selected_N where the loss
        picks tokens from all of it, positive_N where right answers count apart (each token's share of their mean).
        `seed` makes the draw repeat."""
        if self.positive_coef:
            positive_N = mini["positive_S"][mini.seq_N] & mini["mask_N"]
            mini.add(positive_N=positive_N / positive_N.sum().clamp(min=1))
        if select := SELECTIONS.get(self.loss_mode):
            at = produced(mini)
            old_logp_M, adv_M = at.pick(mini["old_logp_N"]), at.pick(mini["advantages_N"])
            selected_N = torch.zeros(mini.N, dtype=torch.bool)
            if at.M:
                selected_N[at.index_M[select(old_logp_M, adv_M, self.options, seed)]] = True
            mini.add(selected_N=selected_N)

    def __call__(self, out: Mapping[Need, Tensor], batch: Batch, totals: Totals) -> tuple[Tensor, dict[str, Metric]]:
        at = produced(batch)
        logp_M = at.pick(out[Need.LOGP])
        loss_M, metrics = self._policy_loss(logp_M, at, batch)
        loss = aggregate(loss_M, at, totals, self.agg_mode, self.scale)
        metrics["actor/pg_loss"] = _total(loss)
        if Need.ENTROPY in self.needs:
            entropy_M = at.pick(out[Need.ENTROPY])
            metrics["actor/entropy"] = mean_of(entropy_M)
            if self.entropy_coeff:
                loss = loss - self.entropy_coeff * aggregate(entropy_M, at, totals, self.agg_mode, self.scale)
        if self.positive_coef:
            nll = -(at.pick(batch["positive_N"]) * logp_M).sum()
            metrics["actor/positive_lm_loss"] = _total(nll)
            loss = loss + self.positive_coef * nll
        if self.kl_type:
            if self.kl_type == FULL_KL:
                kl_M = at.pick(out[Need.FULL_KL])
            else:
                kl_M = kl_estimate(self.kl_type, logp_M, at.pick(batch["ref_logp_N"]))
            kl = aggregate(kl_M, at, totals, self.agg_mode, self.scale)
            metrics["actor/kl_loss"] = _total(kl)
            loss = loss + self.kl_coef * kl
        if self.log_mismatch:
            metrics |= mismatch(logp_M, at.pick(batch["rollout_logp_N"]), at)
        return loss, metrics

    def _policy_loss(self, logp_M: Tensor, at: Produced, batch: Batch) -> tuple[Tensor, dict[str, Metric]]:
        """The policy loss of each token, and its diagnostics over those that count."""
        policy_loss: PolicyLossFn = catalogue.implementation("policy_loss", self.loss_mode)
        chosen_M = at.pick(batch["selected_N"]) if "selected_N" in batch else None
        tokens = Tokens(logp_M, at.pick(batch["old_logp_N"]), at.pick(batch["advantages_N"]), at, chosen_M)
        factor_M, metrics = self._factor(logp_M, at, batch)
        if factor_M is None:
            loss_M, diagnostics = per_token(self.loss_mode, policy_loss(tokens, self.options), at.M)
        else:  # what is left out never enters the loss, so that no inf of it becomes a NaN in a gradient
            counts = factor_M.nonzero()[:, 0]
            loss_K, diagnostics = per_token(self.loss_mode, policy_loss(tokens.only(counts), self.options), len(counts))
            loss_M = loss_K.new_zeros(at.M).index_copy(0, counts, loss_K * factor_M[counts].to(loss_K.dtype))
        return loss_M, metrics | {f"actor/{name}": mean_of(v) for name, v in diagnostics.items()}

    def _factor(self, logp_M: Tensor, at: Produced, batch: Batch) -> tuple[Tensor | None, dict[str, Metric]]:
        """What the rollout correction makes of each token, without gradient; None: nothing."""
        if self.corrected:
            return at.pick(batch["correction_N"]), {}
        if self.rejections:
            return keep(log_ratio(logp_M, at.pick(batch["rollout_logp_N"])), at, self.rejections)
        return None, {}


@dataclass(frozen=True)
class ValueLoss:
    """The critic's loss: half the larger squared error of the value and of the value clipped to old value +- cliprange.

    Reads values_N (the old values), returns_N and mask_N.
    """

    cliprange: float = 0.5
    agg_mode: str = "token-mean"
    scale: float | None = None  # divisor of seq-mean-token-sum-norm
    temperature: float = 1.0
    needs: frozenset[Need] = frozenset({Need.VALUES})

    @classmethod
    def from_config(cls, cfg: CriticConfig, loss_scale_factor: float | None = None) -> ValueLoss:
        """From an effective configuration's critic and actor.loss_scale_factor. Raises ValueError for a null preset."""
        return cls(cfg.cliprange_value, _resolved(cfg.loss_agg_mode, "critic.loss_agg_mode"), loss_scale_factor)

    def __call__(self, out: Mapping[Need, Tensor], batch: Batch, totals: Totals) -> tuple[Tensor, dict[str, Metric]]:
        at = produced(batch)
        value_M, old_M, return_M = at.pick(out[Need.VALUES]), at.pick(batch["values_N"]), at.pick(batch["returns_N"])
        clipped_M = torch.clamp(value_M, old_M - self.cliprange, old_M + self.cliprange)
        plain_error_M, clipped_error_M = (value_M - return_M).square(), (clipped_M - return_M).square()
        loss = 0.5 * aggregate(torch.maximum(plain_error_M, clipped_error_M), at, totals, self.agg_mode, self.scale)
        return loss, {
            "critic/vf_loss": _total(loss),
            "critic/vf_clipfrac": mean_of((clipped_error_M > plain_error_M).float()),
            "critic/vpred_mean": mean_of(value_M),
        }


@dataclass(frozen=True)
class SftLoss:
    """Cross entropy on the tokens with mask 1, mean over all of them. Reads mask_N."""

    temperature: float = 1.0
    needs: frozenset[Need] = frozenset({Need.LOGP})

    def __call__(self, out: Mapping[Need, Tensor], batch: Batch, totals: Totals) -> tuple[Tensor, dict[str, Metric]]:
        at = produced(batch)
        loss = -aggregate(at.pick(out[Need.LOGP]), at, totals, "token-mean")
        return loss, {}
