"""Schema of what other language models teach: teachers of on-policy distillation, and PRIME's reward model."""

from dataclasses import dataclass, field
from typing import Literal

from verl_core.config.schema_roles import OptimConfig

FORWARD_TOPK = "forward_kl_topk"
"""The `loss_mode` that is no estimator on the sampled tokens."""


@dataclass
class TeacherModelConfig:
    model_path: str | None = None
    """Hugging Face folder or hub name, or `builtin:NAME/PHASE`: the builtin student as it was after that phase of
    `warmup`."""
    key: str | None = None
    """Value of the column data.reward_fn_key whose rows it teaches; null: all rows, as the only teacher."""


@dataclass
class TeacherConfig:
    pool: str | None = None
    """Pool of the teachers; null: the actor's."""
    param_offload: bool = True
    """Keep their parameters in host memory but for their own passes."""
    log_prob_micro_batch_size_per_gpu: int | None = None
    """Sequences a forward; null: the actor's micro-batch rule."""
    log_prob_max_token_len_per_gpu: int | None = None
    """Tokens a forward; null: the actor's micro-batch rule."""


@dataclass
class DistillationConfig:
    teacher_models: dict[str, TeacherModelConfig] = field(default_factory=dict)
    """The teachers, by names of your choice; algorithm.name=opd needs at least one."""
    loss_mode: Literal[
        "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3",
        "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+",
        "forward_kl_topk",
    ] = "k1"  # fmt: skip
    """What is to be made small: an estimator of KL(student, teacher) on the sampled tokens, or forward_kl_topk,
    KL(teacher, student) on the teacher's likeliest tokens, which is back-propagated."""
    topk: int = 32
    """forward_kl_topk: how many of the teacher's likeliest tokens (>= 1)."""
    use_policy_gradient: bool = True
    """Take the estimate's negative as each token's advantage in the policy loss; false: back-propagate it."""
    use_task_rewards: bool = False
    """Learn from the scorer's rewards as well, by algorithm.adv_estimator."""
    coef: float = 1.0
    """Weight of the distillation beside the task's loss or advantages (> 0)."""
    loss_max_clamp: float | None = None
    """Largest size of a token's estimate, nats (> 0); null: no bound."""
    log_prob_min_clamp: float | None = None
    """Log-probs below it count as it, of student and teacher (< 0); null: none do."""


@dataclass
class PrimeConfig:
    beta: float = 0.05
    """Nats of the log-ratio to process reward (> 0)."""
    process_coef: float = 1.0
    """Weight of the process rewards' advantage (>= 0)."""
    outcome_coef: float = 1.0
    """Weight of the outcome's advantage (>= 0)."""
    gamma: float = 1.0
    """Discount of the process rewards, in [0, 1]."""
    accuracy_lower_bound: float = 0.2
    """Prompts whose answers are right less often are left out of both updates, in [0, 1]."""
    accuracy_upper_bound: float = 0.8
    """Prompts whose answers are right more often are left out, in [0, 1]."""
    pool: str | None = None
    """Pool of the reward model; null: the actor's."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """The reward model's optimizer."""
