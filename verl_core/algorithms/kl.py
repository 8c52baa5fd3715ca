"""KL(policy, reference) estimated from the sampled tokens, and the coefficient that weighs it in the reward.

Estimators after J. Schulman, http://joschu.net/blog/kl-approx.html; controllers after arXiv 1909.08593.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from verl_core.algorithms.produced import Produced
from verl_core.config.schema import KlCtrlConfig

Estimator = Callable[[Tensor, Tensor], Tensor]


def k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """log p - log q: unbiased, can be negative; as a loss its expected gradient is 0."""
    return logp - ref_logp


def absolute(logp: Tensor, ref_logp: Tensor) -> Tensor:
    return (logp - ref_logp).abs()


def k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Half the squared log-ratio: biased as a value, but its gradient is the unbiased gradient of the KL on-policy."""
    return 0.5 * (logp - ref_logp).square()


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """q/p - 1 - log(q/p): unbiased and >= 0; as a loss it follows KL(q, p). Log-ratio clamped to
    +-20, result to +-10."""
    log_ratio = (ref_logp - logp).clamp(-20, 20)
    return (log_ratio.expm1() - log_ratio).clamp(-10, 10)


def k1_straight(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """The value of k1 with the gradient of k2: a loss that shows the KL and follows its unbiased gradient."""
    return _with_gradient_of_k2(k1, logp, ref_logp)


def absolute_straight(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """The value of abs with the gradient of k2."""
    return _with_gradient_of_k2(absolute, logp, ref_logp)


def k3_straight(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """The value of k3 with the gradient of k2."""
    return _with_gradient_of_k2(k3, logp, ref_logp)


def full_kl(logp_V: Tensor, ref_logp_V: Tensor) -> Tensor:
    """KL(p, q) = sum_v p_v (log p_v - log q_v) over the whole vocabulary, the last axis, which goes: no estimate, and
    its gradient is the KL's. Log-probs in nats; a token that p excludes (-inf) adds 0."""
    gap_V = torch.where(logp_V == -torch.inf, 0.0, logp_V - ref_logp_V)
    return (logp_V.exp() * gap_V).sum(-1)


def _with_gradient_of_k2(estimator: Estimator, logp: Tensor, ref_logp: Tensor) -> Tensor:
    gradient = k2(logp, ref_logp)
    return gradient + (estimator(logp, ref_logp) - gradient).detach()


ESTIMATORS: dict[str, Estimator] = {
    "kl": k1,
    "k1": k1,
    "abs": absolute,
    "mse": k2,
    "k2": k2,
    "low_var_kl": k3,
    "k3": k3,
    "kl+": k1_straight,
    "k1+": k1_straight,
    "abs+": absolute_straight,
    "mse+": k2,
    "k2+": k2,
    "low_var_kl+": k3_straight,
    "k3+": k3_straight,
}


def kl_estimate(name: str, logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token estimate of KL(p, q) in nats, for tokens drawn from p. Any shape; log-probs in nats. Raises ValueError
    for an unknown name."""
    if name not in ESTIMATORS:
        raise ValueError(f"unknown KL estimator {name!r}; there are {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name](logp, ref_logp)


def mean_kl(kl_M: Tensor, at: Produced) -> tuple[float, int]:
    """Mean over sequences of each one's mean, nats a token, and how many sequences produced something to measure."""
    has_S = at.count_S > 0
    kl_S = at.per_sequence(kl_M.double())[has_S] / at.count_S[has_S]
    return (float(kl_S.mean()) if len(kl_S) else 0.0), len(kl_S)


class KlController(Protocol):
    """The KL coefficient beta of the reward penalty, over the course of a run."""

    coef: float

    def update(self, kl: float, sequences: int) -> None:
        """Tells the mean KL (nats a token) of a step and how many sequences it was measured on."""
        ...

    def state(self) -> dict[str, float]: ...

    def load_state(self, state: dict[str, float]) -> None: ...


@dataclass
class FixedKl:
    """beta stays what it is."""

    coef: float

    def update(self, kl: float, sequences: int) -> None:
        pass

    def state(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state(self, state: dict[str, float]) -> None:
        """Keeps the configured coefficient: a resumed run may change it."""


@dataclass
class AdaptiveKl:
    """beta <- beta (1 + clip(KL / target - 1, +-0.2) n / horizon): pulls the KL towards its target."""

    coef: float
    target: float  # nats a token
    horizon: int  # sequences

    def update(self, kl: float, sequences: int) -> None:
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.coef *= 1 + error * sequences / self.horizon

    def state(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state(self, state: dict[str, float]) -> None:
        self.coef = state["coef"]


def kl_controller(cfg: KlCtrlConfig) -> KlController:
    """The controller that algorithm.kl_ctrl describes."""
    if cfg.type == "adaptive":
        return AdaptiveKl(cfg.kl_coef, cfg.target_kl, cfg.horizon)
    return FixedKl(cfg.kl_coef)
