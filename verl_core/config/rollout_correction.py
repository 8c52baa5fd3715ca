"""The section algorithm.rollout_correction, and its texts as numbers: what bounds the importance weights, and what is
rejected. The grammar is veRL's, so that its scripts read as they are."""

import math
from dataclasses import dataclass
from typing import Literal

RULES = (
    *("token_k1", "token_k2", "token_k3"),
    *("seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
    *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3"),
    *("seq_max_k2", "seq_max_k3"),
)


@dataclass
class RolloutCorrectionConfig:
    rollout_is: Literal["token", "sequence"] | None = None
    """Weigh each token's policy loss by the trainer's old probability over the engine's: its own (token), or the
    product of its sequence's (sequence); null: weight 1."""
    rollout_is_threshold: float | str = 2.0
    """A number: larger weights are cut to it (TIS); a text low_high, as 0.5_5.0: weights outside become 0 (IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean over the batch."""
    rollout_rs: str | None = None
    """Reject what the engine sampled too unlike the trainer, by one rule or several with commas:
    {token, seq_sum, seq_mean}_{k1, k2, k3}, seq_max_{k2, k3}; null: nothing."""
    rollout_rs_threshold: float | str | None = None
    """Largest divergence a rule accepts, nats; for k1 the largest ratio engine / trainer, with its inverse as smallest,
    or low_high; one for all rules, or one for each with commas."""


@dataclass(frozen=True)
class Weights:
    """How the trainer's probability over the engine's weighs a token's loss."""

    level: str
    """token: each by its own ratio; sequence: all by the product of their sequence's."""
    low: float | None
    """A ratio below is dropped (weight 0); None: ratios are only cut at `high`."""
    high: float
    normalize: bool = False
    """Divide by the batch's mean weight."""


@dataclass(frozen=True)
class Rejection:
    """Tokens, or whole sequences, whose divergence lies outside [low, high] do not train the policy."""

    name: str
    low: float
    high: float

    @property
    def level(self) -> str:
        """token, seq_sum, seq_mean or seq_max."""
        return self.name[:-3]

    @property
    def divergence(self) -> str:
        """k1, k2 or k3, nats."""
        return self.name[-2:]


def weights_of(cfg: RolloutCorrectionConfig) -> Weights | None:
    """None: tokens are not weighed. Raises ValueError for a threshold that is none."""
    if cfg.rollout_is is None:
        return None
    low, high = _bounds(str(cfg.rollout_is_threshold))
    return Weights(cfg.rollout_is, low, high, cfg.rollout_is_batch_normalize)


def rejections_of(cfg: RolloutCorrectionConfig) -> tuple[Rejection, ...]:
    """Every rule in the order given. Raises ValueError for an unknown rule, or one without a threshold that fits it."""
    if cfg.rollout_rs is None:
        return ()
    names = list(dict.fromkeys(_parts(cfg.rollout_rs)))
    for name in names:
        if name not in RULES:
            raise ValueError(f"no rule {name!r}; there are {', '.join(RULES)}")
    if cfg.rollout_rs_threshold is None:
        raise ValueError("set algorithm.rollout_correction.rollout_rs_threshold too, which has no default")
    texts = _parts(str(cfg.rollout_rs_threshold))
    if len(texts) not in (1, len(names)):
        raise ValueError(f"{len(names)} rules, but {len(texts)} thresholds: give one for all or one for each")
    return tuple(map(_rejection, names, texts * len(names) if len(texts) == 1 else texts))


def _rejection(name: str, text: str) -> Rejection:
    low, high = _bounds(text)
    if name.endswith("k1"):
        return Rejection(name, math.log(1 / high if low is None else low), math.log(high))
    if low is not None:
        raise ValueError(f"{name} is never negative and takes one upper bound, not {text!r}")
    return Rejection(name, -math.inf, high)


def _bounds(text: str) -> tuple[float | None, float]:
    """`2` -> (None, 2); `0.5_2` -> (0.5, 2)."""
    try:
        numbers = [float(part) for part in text.split("_")]
    except ValueError:
        numbers = []
    *below, high = numbers or [math.nan]
    if len(numbers) > 2 or not all(0 < n < math.inf for n in (*below, high)) or below > [high]:
        raise ValueError(f"{text!r} is neither a number above 0 nor two of them, the smaller first, as in 0.5_2.0")
    return (below[0] if below else None), high


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]
