"""The coefficient of the entropy bonus over the course of a run: as configured, or steered towards a target entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from verl_core.config.schema import EntropyCtrlConfig


class EntropyController(Protocol):
    """The weight of the entropy bonus in the actor's loss."""

    @property
    def coef(self) -> float: ...

    def update(self, entropy: float) -> None:
        """Tells the policy's mean entropy in a step, nats a token."""
        ...

    def state(self) -> dict[str, float]: ...

    def load_state(self, state: dict[str, float]) -> None: ...


@dataclass
class FixedEntropy:
    """The coefficient stays what it is."""

    coef: float

    def update(self, entropy: float) -> None:
        pass

    def state(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state(self, state: dict[str, float]) -> None:
        """Keeps the configured coefficient: a resumed run may change it."""


@dataclass
class TargetEntropy:
    """alpha_k = c_k where the entropy is at most `target`, else 0; c_{k+1} = c_k + delta below the target, c_k - delta
    above it (Skywork-OR1, arXiv 2505.22312). c is never negative here: that would be a penalty."""

    c: float  # the coefficient to start with
    target: float  # nats a token
    delta: float
    entropy: float | None = None  # last told; None: none yet

    @property
    def coef(self) -> float:
        return self.c if self.entropy is not None and self.entropy <= self.target else 0.0

    def update(self, entropy: float) -> None:
        self.entropy = entropy
        if entropy != self.target:
            self.c = max(self.c + (self.delta if entropy < self.target else -self.delta), 0.0)

    def state(self) -> dict[str, float]:
        return {"c": self.c} if self.entropy is None else {"c": self.c, "entropy": self.entropy}

    def load_state(self, state: dict[str, float]) -> None:
        self.c = state.get("c", self.c)  # a run that had a fixed coefficient before starts here
        self.entropy = state.get("entropy")


def entropy_controller(cfg: EntropyCtrlConfig, coef: float) -> EntropyController:
    """The controller that actor.entropy_ctrl describes; `coef` is actor.entropy_coeff."""
    if cfg.type == "target":
        return TargetEntropy(coef, cfg.target, cfg.delta)
    return FixedEntropy(coef)
