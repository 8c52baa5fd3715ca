"""Algorithms that learn from another language model, on-policy distillation and PRIME, as the catalogue has them."""

from verl_core.config.algorithms import PRESET
from verl_core.config.registry import register

_DISTILLATION = tuple(
    f"distillation.{name}"
    for name in (
        "teacher_models", "loss_mode", "topk", "use_policy_gradient", "use_task_rewards", "coef", "loss_max_clamp",
        "log_prob_min_clamp",
    )
)  # fmt: skip
_PRIME = tuple(
    f"algorithm.prime.{name}"
    for name in (
        "beta", "process_coef", "outcome_coef", "gamma", "accuracy_lower_bound", "accuracy_upper_bound", "pool",
        "optim",
    )
)  # fmt: skip
_PRIME_PRESET = {key: value for key, value in PRESET.items() if key != "algorithm.norm_adv_by_std_in_grpo"}


def register_from_models() -> None:
    """Adds them to the registry."""
    register(
        "algorithm",
        "opd",
        where="verl_core.controller.flows.distillation:DistillationFlow",
        needs=("teacher",),
        keys=(*PRESET, *_DISTILLATION),
        formula="A_t = -coef KL_estimate(log p_student, log p_teacher); or loss + coef agg(KL), back-propagated",
        options=PRESET,
        doc="On-policy distillation: on its own answers a student follows one or several teachers (arXiv 2306.13649).",
    )
    register(
        "algorithm",
        "prime",
        where="verl_core.controller.flows.prime:PrimeFlow",
        needs=("group", "process_rewards"),
        keys=(*_PRIME_PRESET, *_PRIME),
        formula="A_t = sum_{s>=t} gamma^(s-t) (r_s - mean of the others' means) + o - mean of the others' o, "
        "r_t = beta (log p_prm - log p_ref), p_prm trained on -log sigmoid(+-sum r)",
        options=_PRIME_PRESET,
        doc="Process rewards from a language model that is trained beside on outcomes alone (arXiv 2502.01456).",
    )
