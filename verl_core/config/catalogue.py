"""What rlx brings: algorithms, estimators, losses, engines, executors, transports, trackers, data sets and scorers, without
importing any of it. So the command knows that GRPO has no critic before there is an environment."""

from verl_core.config.registry import Entry, entry, implementation, load_plugins, names, register

__all__ = ["Entry", "entry", "implementation", "load_plugins", "names", "register"]

_PRESET = {
    "actor.loss_agg_mode": "token-mean",
    "actor.use_kl_loss": False,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
}


def _algorithm(name: str, estimator: str, doc: str, **changes: object) -> None:
    options = _PRESET | {"algorithm.adv_estimator": estimator} | {k.replace("__", "."): v for k, v in changes.items()}
    register(
        "algorithm", name, needs=entry("advantage", estimator).needs, keys=tuple(options), doc=doc, options=options
    )


def _many(kind: str, module: str, entries: dict[str, str]) -> None:
    for name, doc in entries.items():
        register(kind, name, where=f"{module}:{name}", doc=doc)


_ADVANTAGES = "verl_core.algorithms.advantages"
register(
    "advantage",
    "gae",
    where=f"{_ADVANTAGES}:gae",
    needs=("critic",),
    keys=("algorithm.gamma", "algorithm.lam"),
    doc="Generalised advantage estimation from a critic's values, whitened (arXiv 1506.02438).",
)
register(
    "advantage",
    "grpo",
    where=f"{_ADVANTAGES}:grpo",
    needs=("group",),
    keys=("algorithm.norm_adv_by_std_in_grpo",),
    doc="Reward against the mean of the prompt's group, over its standard deviation (arXiv 2402.03300).",
)
register(
    "advantage",
    "rloo",
    where=f"{_ADVANTAGES}:rloo",
    needs=("group",),
    doc="Reward against the mean of the others in the group (arXiv 2402.14740).",
)
register(
    "advantage",
    "reinforce_plus_plus",
    where=f"{_ADVANTAGES}:reinforce_plus_plus",
    keys=("algorithm.gamma",),
    doc="Discounted return, whitened over the batch (arXiv 2501.03262).",
)
_algorithm("ppo", "gae", "PPO with a critic (arXiv 1707.06347).")
_algorithm("grpo", "grpo", "GRPO, token mean over the batch (arXiv 2402.03300).")
_algorithm(
    "dr_grpo",
    "grpo",
    "GRPO without the two biases: no division by the standard deviation or the length (arXiv 2503.20783).",
    algorithm__norm_adv_by_std_in_grpo=False,
    actor__loss_agg_mode="seq-mean-token-sum-norm",
)
_algorithm("rloo", "rloo", "REINFORCE with a leave-one-out baseline (arXiv 2402.14740).")
_algorithm("reinforce_plus_plus", "reinforce_plus_plus", "REINFORCE++ (arXiv 2501.03262).")
register(
    "policy_loss",
    "vanilla",
    where="verl_core.algorithms.policy_loss:vanilla",
    keys=("actor.clip_ratio", "actor.clip_ratio_low", "actor.clip_ratio_high", "actor.clip_ratio_c"),
    doc="Clipped ratio with a dual clip (arXiv 1707.06347, 1912.09729).",
)
register(
    "dataset",
    "gsm8k",
    where="verl_core.data.prepare.gsm8k:prepare",
    doc="8,792 grade-school word problems (arXiv 2110.14168), from the hub or --source.",
)
register(
    "dataset",
    "show-your-work",
    where="verl_core.data.prepare.show_your_work:prepare",
    doc="1,899 two-step word problems, made here.",
)
register(
    "scorer",
    "openai/gsm8k",
    where="verl_core.rewards.gsm8k:compute_score",
    keys=("reward.reward_kwargs.method",),
    doc="1 when the number after #### is the gold number; method: strict, boxed, flexible.",
)
register(
    "scorer",
    "rlx/show-your-work",
    where="verl_core.rewards.show_your_work:compute_score",
    doc="1 when the last #### N is the gold number.",
)
