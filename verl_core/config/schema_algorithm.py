"""Schema of the algorithm: from rewards to advantages."""

from dataclasses import dataclass, field
from typing import Literal

from verl_core.config.rollout_correction import RolloutCorrectionConfig
from verl_core.config.schema_distillation import PrimeConfig
from verl_core.config.schema_preference import PreferenceConfig


@dataclass
class KlCtrlConfig:
    type: Literal["fixed", "adaptive"] = "fixed"
    """fixed, or adaptive: coefficient steered towards target_kl (arXiv 1909.08593)."""
    kl_coef: float = 0.001
    """KL coefficient in the reward (>= 0)."""
    horizon: int = 10000
    """Horizon of the adaptive controller, sequences."""
    target_kl: float = 0.1
    """KL the adaptive controller aims at, nats a sequence token."""


@dataclass
class FilterGroupsConfig:
    enable: bool | None = None
    """Train only on groups whose answers differ in `metric`, and generate until a batch of them is full (DAPO, arXiv
    2503.14476); null: the preset's."""
    metric: Literal["reward", "acc"] = "acc"
    """What must differ within a group."""
    max_num_gen_batches: int = 0
    """Batches generated for one step before it fails (>= 0; 0: no limit)."""


@dataclass
class PfPpoConfig:
    reweight_method: Literal["pow", "max_min", "max_random"] = "pow"
    """How likely an answer is to be drawn. pow: |reward|^weight_pow; max_min: the best and the worst of the prompt's
    answers, no others; max_random: 0.4 for the best, 0.1 for the others."""
    weight_pow: float = 2.0
    """Exponent of pow (>= 0)."""


@dataclass
class AlgorithmConfig:
    name: str = "ppo"
    """Preset of defaults (advantage, aggregation, KL placement) by its name in docs/algorithms.md."""
    module: str | None = None
    """Python file that registers algorithms, advantages or policy losses of your own (docs/algorithms.md)."""
    adv_estimator: str | None = None
    """Advantage estimator; null: the preset's."""
    gamma: float = 1.0
    """Discount, in [0, 1]."""
    lam: float = 1.0
    """GAE lambda, in [0, 1]; with decoupled_gae the policy's."""
    lam_critic: float = 1.0
    """decoupled_gae: lambda of the critic's returns, in [0, 1]."""
    lam_alpha: float | None = None
    """decoupled_gae: the policy's lambda is 1 - 1 / (lam_alpha * tokens of the answer) (> 0; VAPO, arXiv 2504.05118);
    null: the preset's, which may be none, so that `lam` holds."""
    gdpo_reward_keys: list[str] = field(default_factory=list)
    """gdpo: rewards that are normalised apart: `score`, `acc`, or other numbers that the scorer returns."""
    gdpo_reward_weights: list[float] | None = None
    """gdpo: their weights; null: 1 each."""
    use_pf_ppo: bool | None = None
    """Train on answers drawn anew from each prompt's own, by reward (PF-PPO, arXiv 2409.06957); null: the preset's."""
    pf_ppo: PfPpoConfig = field(default_factory=PfPpoConfig)
    """How they are drawn."""
    norm_adv_by_std_in_grpo: bool | None = None
    """Divide the group-centred reward by the group's standard deviation; null: the preset's."""
    use_kl_in_reward: bool | None = None
    """Subtract kl_ctrl.kl_coef * KL from the token rewards; null: the preset's."""
    kl_penalty: Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "full"] = "kl"
    """KL estimator of the reward penalty; full: the KL itself, over the whole vocabulary."""
    kl_ctrl: KlCtrlConfig = field(default_factory=KlCtrlConfig)
    """KL coefficient in the reward."""
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)
    """Dynamic sampling."""
    prime: PrimeConfig = field(default_factory=PrimeConfig)
    """Process rewards from a language model that learns to tell right answers from wrong (arXiv 2502.01456)."""
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    """Which answers are preferred: DPO and its kin."""
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
    """The policy loss where engine and trainer disagree on how likely the sampled tokens were."""
