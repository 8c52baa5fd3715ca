"""Schema of preference learning: DPO and its kin."""

from dataclasses import dataclass


@dataclass
class PreferenceConfig:
    loss: str | None = None
    """Preference loss; null: the preset's."""
    beta: float | None = None
    """How much a log-ratio to the reference counts as reward (> 0); simpo: a mean log-prob a token. A larger one stays
    closer to the reference; null: the preset's, which may be none."""
    label_smoothing: float = 0.0
    """dpo: probability that chosen and rejected are swapped, in [0, 0.5]."""
    simpo_gamma: float = 0.5
    """simpo: how far the chosen answer is to lead, in units of its reward (>= 0)."""
    orpo_weight: float = 0.1
    """orpo: weight of the odds-ratio term beside the likelihood of the chosen answer (>= 0)."""
    desirable_weight: float = 1.0
    """kto: weight of desirable answers (>= 0)."""
    undesirable_weight: float = 1.0
    """kto: weight of undesirable answers (>= 0)."""
    sppo_eta: float = 1.0
    """sppo: log-ratio, nats, that an answer is to gain over a win rate of 1/2 when it always wins, times two (> 0)."""
    ref_update_freq: int | None = None
    """The present weights become the reference after every so many steps (>= 0; 0: never); null: the preset's."""
