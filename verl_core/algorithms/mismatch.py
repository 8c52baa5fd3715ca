"""How far the rollout engine is from the trainer, measured on the same tokens with the same weights. Always logged: an
engine that drifts away makes every ratio wrong, silently."""

from __future__ import annotations

import math

from torch import Tensor

from verl_core.algorithms.loss import Metric, largest_of, mean_of
from verl_core.algorithms.produced import Produced

SAFE = 20.0  # nats; bounds every exponent
_MOMENTS = "mismatch/"  # of the probabilities: parts add up exactly, their correlation does not


def mismatch(logp_M: Tensor, rollout_logp_M: Tensor, at: Produced) -> dict[str, Metric]:
    """Trainer against engine: |difference| of log-probs (nats) and of probabilities, estimates of KL(engine, trainer),
    perplexities as means over sequences, chi squared. Names are veRL's where the number is. See `finished` too."""
    logp_M, rollout_logp_M = logp_M.detach().double(), rollout_logp_M.double()
    log_ratio_M = (logp_M - rollout_logp_M).clamp(-SAFE, SAFE)
    logp_diff_M = (logp_M - rollout_logp_M).abs()
    p_M, q_M = logp_M.exp(), rollout_logp_M.exp()
    has_S = at.count_S > 0
    length_S = at.count_S[has_S]
    trainer_S, engine_S = (-at.per_sequence(value_M)[has_S] / length_S for value_M in (logp_M, rollout_logp_M))
    gap_S = trainer_S - engine_S
    moments = {"p": p_M, "q": q_M, "pp": p_M * p_M, "qq": q_M * q_M, "pq": p_M * q_M}
    return {
        "training/rollout_logp_diff_mean": mean_of(logp_diff_M),
        "training/rollout_logp_diff_max": largest_of(logp_diff_M),
        "training/rollout_probs_diff_mean": mean_of((p_M - q_M).abs()),
        "training/rollout_probs_diff_max": largest_of((p_M - q_M).abs()),
        "rollout_corr/kl": mean_of(-log_ratio_M),
        "rollout_corr/k3_kl": mean_of(log_ratio_M.expm1() - log_ratio_M),
        "rollout_corr/training_ppl": mean_of(_exp(trainer_S)),
        "rollout_corr/rollout_ppl": mean_of(_exp(engine_S)),
        "rollout_corr/ppl_ratio": mean_of(_exp(gap_S)),
        "rollout_corr/log_ppl_diff": mean_of(gap_S),
        "rollout_corr/log_ppl_abs_diff": mean_of(gap_S.abs()),
        "rollout_corr/chi2_token": mean_of(_exp(2 * log_ratio_M) - 1),
        "rollout_corr/chi2_seq": mean_of(_exp(-2 * gap_S * length_S) - 1),
        **{f"{_MOMENTS}{name}": mean_of(value_M) for name, value_M in moments.items()},
    }


def finished(metrics: dict[str, float]) -> dict[str, float]:
    """The joined numbers of `mismatch` (others pass) with the correlation of the two sides' probabilities in place of
    their moments; without it where one side does not vary."""
    rest = {name: value for name, value in metrics.items() if not name.startswith(_MOMENTS)}
    if f"{_MOMENTS}pq" not in metrics:
        return rest
    p, q, pp, qq, pq = (metrics[_MOMENTS + name] for name in ("p", "q", "pp", "qq", "pq"))
    spread = math.sqrt(max(pp - p * p, 0.0) * max(qq - q * q, 0.0))
    if spread > 1e-12:  # below is rounding
        rest["training/rollout_actor_probs_pearson_corr"] = max(-1.0, min(1.0, (pq - p * q) / spread))
    return rest


def _exp(value: Tensor) -> Tensor:
    return value.clamp(-SAFE, SAFE).exp()
