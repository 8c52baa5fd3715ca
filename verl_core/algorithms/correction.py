"""Correcting the policy loss for a rollout engine that is not quite the trainer: importance weights and rejection.

With l = log pi_trainer - log pi_engine of a sampled token: truncated importance sampling (TIS) cuts the weight e^l at a
bound (fengyao.notion.site/off-policy-rl), IcePop drops what lies outside two bounds (arXiv 2510.18855); for whole
sequences and for rejection see richardli.xyz/rl-collapse. A token of weight 0 stays in every divisor: the loss is the
papers' sum over all tokens with an indicator in front. Weights carry no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verl_core.algorithms.loss import Metric, mean_of
from verl_core.algorithms.produced import Produced, produced
from verl_core.batch import Batch
from verl_core.config.rollout_correction import Rejection, Weights

SAFE = 20.0  # nats; e^20 is 5e8
_DIVERGENCES = {
    "k1": lambda log_ratio: -log_ratio,
    "k2": lambda log_ratio: 0.5 * log_ratio.square(),
    "k3": lambda log_ratio: log_ratio.expm1() - log_ratio,
}


def mask_not_finite(batch: Batch) -> None:
    """Takes a token whose log-prob the engine gave as NaN or infinite out of mask_N: nothing can be said of its ratio,
    so it counts as text that the model did not produce."""
    batch.add(mask_N=batch["mask_N"] & batch["rollout_logp_N"].isfinite())


def log_ratio(logp_M: Tensor, rollout_logp_M: Tensor) -> Tensor:
    """Trainer over engine, nats, float64, without gradient."""
    return logp_M.detach().double() - rollout_logp_M.double()


def correct(batch: Batch, weights: Weights | None, rejections: Sequence[Rejection]) -> tuple[Tensor, dict[str, float]]:
    """The factor [N] of each token's policy loss, float32, and veRL's metrics rollout_corr/*, from old_logp_N against
    rollout_logp_N. `weights` None: tokens weigh 1."""
    at = produced(batch)
    log_ratio_M = log_ratio(at.pick(batch["old_logp_N"]), at.pick(batch["rollout_logp_N"]))
    factor_M = torch.ones_like(log_ratio_M)
    metrics: dict[str, float] = {}
    if weights is not None and at.M:
        factor_M, metrics = importance_weights(log_ratio_M, at, weights)
    if rejections and at.M:
        keep_M, parts = keep(log_ratio_M, at, rejections)
        factor_M = torch.where(keep_M, factor_M, 0.0)
        metrics |= {name: float(part.value) / float(part.weight) for name, part in parts.items()}
    return at.spread(factor_M.float(), batch.N), metrics


def importance_weights(log_ratio_M: Tensor, at: Produced, weights: Weights) -> tuple[Tensor, dict[str, float]]:
    """Bounded ratios of tokens or, on every token of it, of its sequence. Metrics speak of the weights before they are
    divided by their mean; with none below their bound, low is the bound's inverse. Needs at least one token."""
    whole = weights.level == "sequence"
    ratio_M = (at.per_sequence(log_ratio_M)[at.seq_M] if whole else log_ratio_M).clamp(-SAFE, SAFE).exp()
    below_M, above_M = ratio_M < (weights.low or 1 / weights.high), ratio_M > weights.high
    if weights.low is None:
        weight_M = ratio_M.clamp(max=weights.high)
    else:
        weight_M = torch.where(below_M | above_M, 0.0, ratio_M)
    per_S = (at.per_sequence(weight_M) / at.count_S)[at.count_S > 0]
    square = weight_M.square().mean()
    metrics = {
        "mean": weight_M.mean(),
        "std": weight_M.std(correction=0),
        "min": weight_M.min(),
        "max": weight_M.max(),
        "ratio_fraction_high": above_M.double().mean(),
        "ratio_fraction_low": below_M.double().mean(),
        "eff_sample_size": weight_M.mean().square() / square if square else square,  # as a share of the tokens
        "seq_mean": per_S.mean(),
        "seq_min": per_S.min(),
        "seq_max": per_S.max(),
    }
    if weights.low is not None:
        metrics["oob_ratio"] = (below_M | above_M).double().mean()
    if weights.normalize:
        mean = per_S.mean() if whole else weight_M.mean()
        metrics["batch_norm_factor"] = mean = mean if mean > 0 else torch.ones_like(mean)
        weight_M = weight_M / mean
    return weight_M, {f"rollout_corr/rollout_is_{name}": float(value) for name, value in metrics.items()}


def keep(log_ratio_M: Tensor, at: Produced, rejections: Sequence[Rejection]) -> tuple[Tensor, dict[str, Metric]]:
    """True for the tokens that no rule rejects, and the shares of tokens, and of sequences that lost some, by rule and
    in all. A ratio that is not a number is rejected."""
    log_ratio_M = log_ratio_M.clamp(-SAFE, SAFE)
    kept_M = torch.ones_like(log_ratio_M, dtype=torch.bool)
    metrics: dict[str, Metric] = {}
    for rule in rejections:
        value_M = _levels(_DIVERGENCES[rule.divergence](log_ratio_M), at, rule.level)
        passed_M = (value_M >= rule.low) & (value_M <= rule.high)
        metrics |= _shares(f"rollout_rs_{rule.name}_", ~passed_M, at)
        kept_M &= passed_M
    return kept_M, metrics | _shares("rollout_rs_", ~kept_M, at)


def _shares(prefix: str, rejected_M: Tensor, at: Produced) -> dict[str, Metric]:
    hit_S = at.per_sequence(rejected_M.double())[at.count_S > 0] > 0
    return {
        f"rollout_corr/{prefix}masked_fraction": mean_of(rejected_M.double()),
        f"rollout_corr/{prefix}seq_masked_fraction": mean_of(hit_S.double()),
    }


def _levels(value_M: Tensor, at: Produced, level: str) -> Tensor:
    """The value itself, or on every token the sum, mean or largest of its sequence."""
    if level == "token":
        return value_M
    per_S = at.per_sequence(value_M, "max" if level == "seq_max" else "sum")
    if level == "seq_mean":
        per_S = per_S / at.count_S.clamp(min=1)
    return per_S[at.seq_M]
