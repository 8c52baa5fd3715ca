"""KL(policy, reference) estimated from the sampled tokens, and the coefficient that weighs it in the reward.

Estimators after J. Schulman, http://joschu.net/blog/kl-approx.html; controllers after arXiv 1909.08593.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from verl_core.config.schema import KlCtrlConfig


def k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """log p - log q: unbiased, can be negative; as a loss its expected gradient is 0."""
    return logp - ref_logp


def absolute(logp: Tensor, ref_logp: Tensor) -> Tensor:
    return (logp - ref_logp).abs()


def k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Half the squared log-ratio: biased as a value, but its gradient is the unbiased gradient of the KL on-policy."""
    return 0.5 * (logp - ref_logp).square()


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """q/p - 1 - log(q/p): unbiased and >= 0. Log-ratio clamped to +-20 and result to +-10, against overflow."""
    log_ratio = (ref_logp - logp).clamp(-20, 20)
    return (log_ratio.expm1() - log_ratio).clamp(-10, 10)


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": k1,
    "k1": k1,
    "abs": absolute,
    "mse": k2,
    "k2": k2,
    "low_var_kl": k3,
    "k3": k3,
}


def kl_estimate(name: str, logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token estimate of KL(p, q) in nats, for tokens drawn from p. Any shape; log-probs in nats.

    A name ending in `+` has the estimator's value and the gradient of k2. Raises ValueError for an unknown name.
    """
    estimator = ESTIMATORS.get(name.removesuffix("+"))
    if estimator is None:
        raise ValueError(f"unknown KL estimator {name!r}; there are {', '.join(ESTIMATORS)}, each also with a +")
    value = estimator(logp, ref_logp)
    if not name.endswith("+"):
        return value
    gradient = k2(logp, ref_logp)
    return gradient + (value - gradient).detach()


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
