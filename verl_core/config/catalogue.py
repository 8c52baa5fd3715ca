"""What rlx brings, without importing any of it: algorithms, estimators, losses, engines, executors, transports,
trackers, data sets, scorers. So the command knows that GRPO has no critic before there is an environment."""

from verl_core.config.policy_losses import register_policy_losses
from verl_core.config.registry import Entry, entry, implementation, load_plugins, names, register

__all__ = ["KINDS", "Entry", "entry", "implementation", "load_plugins", "names", "register"]

KINDS = {
    "algorithm.name": "algorithm",
    "algorithm.adv_estimator": "advantage",
    "algorithm.kl_penalty": "kl",
    "actor.policy_loss.loss_mode": "policy_loss",
    "actor.loss_agg_mode": "aggregation",
    "actor.kl_loss_type": "kl",
    "critic.loss_agg_mode": "aggregation",
    "rollout.engine": "engine",
    "weights.type": "transport",
    "trainer.logger": "tracker",
}
"""Keys whose value is the name of an entry, or a list of names, and the kind of entry."""

_PRESET = {
    "actor.loss_agg_mode": "token-mean",
    "actor.policy_loss.loss_mode": "vanilla",
    "actor.use_kl_loss": False,
    "algorithm.filter_groups.enable": False,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.use_pf_ppo": False,
}


def _algorithm(
    name: str, estimator: str, doc: str, changes: dict[str, object] | None = None, built: bool = True
) -> None:
    """A preset: values for keys that are null."""
    options = {**_PRESET, "algorithm.adv_estimator": estimator, **(changes or {})}
    needs = entry("advantage", estimator).needs
    register("algorithm", name, needs=needs, keys=tuple(options), doc=doc, options=options, built=built)


def _many(kind: str, docs: dict[str, tuple[str, str]]) -> None:
    """Entries without keys of their own: name -> ("module:object", doc)."""
    for name, (where, doc) in docs.items():
        register(kind, name, where=where, doc=doc)


_ADVANTAGES = "verl_core.algorithms.estimators"
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
for _name, _needs, _keys, _doc in (
    (
        "decoupled_gae",
        ("critic",),
        ("algorithm.gamma", "algorithm.lam", "algorithm.lam_critic", "algorithm.lam_alpha"),
        "GAE with one lambda for the policy, which may follow the length, and one for the critic (arXiv 2504.05118).",
    ),
    (
        "grpo_passk",
        ("group",),
        ("algorithm.norm_adv_by_std_in_grpo",),
        "Best of the group less the second best, for the best alone (arXiv 2503.19595).",
    ),
    (
        "gdpo",
        ("group",),
        ("algorithm.norm_adv_by_std_in_grpo", "algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights"),
        "GRPO of each of several rewards apart, added up and whitened over the batch (arXiv 2601.05242).",
    ),
    (
        "reinforce_plus_plus_baseline",
        ("group",),
        (),
        "Reward against the group's mean, whitened over the batch (arXiv 2501.03262).",
    ),
    ("remax", ("greedy",), (), "Reward to come against that of the greedy answer (arXiv 2310.10505)."),
    ("opo", ("group",), (), "Reward against the group's mean weighted by length (arXiv 2505.23585)."),
    ("gpg", ("group",), (), "Reward against the group's mean, scaled up for groups that agree (arXiv 2504.02546)."),
    (
        "optimal_token_baseline",
        ("group", "sum_p_sq"),
        (),
        "A baseline for each place in the answers, weighed by gradient norms (arXiv 2602.07078).",
    ),
    (
        "tir_optimal_token_baseline",
        ("group", "sum_p_sq"),
        (),
        "optimal_token_baseline that counts produced tokens only, for answers with tools (arXiv 2602.07078).",
    ),
):
    register("advantage", _name, where=f"{_ADVANTAGES}:{_name}", needs=_needs, keys=_keys, doc=_doc)
_algorithm("ppo", "gae", "PPO with a critic (arXiv 1707.06347).")
_algorithm("grpo", "grpo", "GRPO, token mean over the batch (arXiv 2402.03300).")
_algorithm(
    "dr_grpo",
    "grpo",
    "GRPO without the two biases: no division by the standard deviation or the length (arXiv 2503.20783).",
    {"algorithm.norm_adv_by_std_in_grpo": False, "actor.loss_agg_mode": "seq-mean-token-sum-norm"},
)
_algorithm(
    "dapo",
    "grpo",
    "GRPO with clip-higher, token mean and dynamic sampling; its length penalty is reward.overlong_buffer (arXiv "
    "2503.14476).",
    {
        "actor.clip_ratio_low": 0.2,
        "actor.clip_ratio_high": 0.28,
        "algorithm.filter_groups.enable": True,
    },
    built=False,
)
_algorithm("rloo", "rloo", "REINFORCE with a leave-one-out baseline (arXiv 2402.14740).")
_algorithm("reinforce_plus_plus", "reinforce_plus_plus", "REINFORCE++ (arXiv 2501.03262).")
for _name, _doc in (
    ("reinforce_plus_plus_baseline", "REINFORCE++ with the group's mean as baseline (arXiv 2501.03262)."),
    ("remax", "REINFORCE with the greedy answer's reward as baseline (arXiv 2310.10505)."),
    ("opo", "REINFORCE with the length-weighted optimal baseline (arXiv 2505.23585)."),
    ("grpo_passk", "GRPO for the best of the group (arXiv 2503.19595)."),
    ("gdpo", "GRPO for several rewards (arXiv 2601.05242)."),
    ("optimal_token_baseline", "REINFORCE with the optimal token baseline (arXiv 2602.07078)."),
    ("tir_optimal_token_baseline", "The same for answers with tools (arXiv 2602.07078)."),
):
    _algorithm(_name, _name, _doc)
_algorithm(
    "pf_ppo",
    "gae",
    "PPO on answers drawn anew from each prompt's own, by reward (arXiv 2409.06957).",
    {"algorithm.use_pf_ppo": True},
)
_algorithm(
    "vapo",
    "decoupled_gae",
    "PPO with a pretrained critic, length-adaptive GAE, clip-higher and a likelihood term (arXiv 2504.05118).",
    {"actor.clip_ratio_low": 0.2, "actor.clip_ratio_high": 0.28, "algorithm.lam_alpha": 0.05},
    built=False,
)
_SEQUENCES = {"actor.loss_agg_mode": "seq-mean-token-mean"}
for _name, _estimator, _loss, _more, _doc in (
    ("gspo", "grpo", "gspo", _SEQUENCES | {"actor.clip_ratio_low": 3e-4, "actor.clip_ratio_high": 4e-4},
     "GRPO with the ratio of whole answers (arXiv 2507.18071)."),
    ("gmpo", "grpo", "gmpo", _SEQUENCES | {"actor.clip_ratio_low": 0.4, "actor.clip_ratio_high": 0.4},
     "GRPO with the geometric mean of an answer's ratios (arXiv 2507.20673)."),
    ("cispo", "grpo", "cispo", {}, "GRPO that clips the importance weight, not the token (arXiv 2506.13585)."),
    ("sapo", "grpo", "sapo", _SEQUENCES, "GRPO with a soft gate in place of the clip (arXiv 2511.20347)."),
    ("dppo", "grpo", "dppo_tv", {"actor.clip_ratio_low": 0.15, "actor.clip_ratio_high": 0.15},
     "GRPO that bounds how far probabilities move, not ratios (arXiv 2602.04879)."),
    ("clip_cov", "grpo", "clip_cov", {}, "GRPO without a few tokens that cost entropy (arXiv 2505.22617)."),
    ("kl_cov", "grpo", "kl_cov", {}, "GRPO with a penalty on the tokens that cost entropy (arXiv 2505.22617)."),
    ("dro", "grpo", "dro", {}, "Policy gradient held to the old policy by a square (arXiv 2405.19107)."),
    ("gpg", "gpg", "gpg", {}, "Group policy gradient: no ratio, no clip (arXiv 2504.02546)."),
    ("reinforce", "reinforce_plus_plus_baseline", "reinforce", {},
     "REINFORCE with the group's mean as baseline, whitened over the batch, and a truncated ratio (Williams 1992)."),
):  # fmt: skip
    _algorithm(_name, _estimator, _doc, {"actor.policy_loss.loss_mode": _loss, **_more})
for _name, _needs, _doc in (
    ("sft", ("dataset",), "Supervised fine-tuning on the assistant's turns."),
    ("dpo", ("dataset", "reference"), "Direct preference optimisation on pairs (arXiv 2305.18290)."),
    ("reward_model", ("dataset",), "Bradley-Terry reward model on pairs (arXiv 2203.02155)."),
):
    register("algorithm", _name, needs=_needs, options=_PRESET, doc=_doc, built=False)
register_policy_losses()
_AGGREGATE = "verl_core.algorithms.aggregate:aggregate"
_many(
    "aggregation",
    {
        "token-mean": (_AGGREGATE, "Mean over all tokens of the mini-batch."),
        "token-sum": (_AGGREGATE, "Sum over all tokens of the mini-batch."),
        "seq-mean-token-sum": (_AGGREGATE, "Mean over sequences of each one's sum."),
        "seq-mean-token-mean": (_AGGREGATE, "Mean over sequences of each one's mean."),
        "seq-mean-token-sum-norm": (_AGGREGATE, "seq-mean-token-sum over actor.loss_scale_factor (arXiv 2503.20783)."),
    },
)
_KL = "verl_core.algorithms.kl:"
_many(
    "kl",
    {
        "kl": (f"{_KL}k1", "k1 by veRL's name."),
        "k1": (f"{_KL}k1", "Log-ratio: unbiased, high variance."),
        "abs": (f"{_KL}absolute", "Absolute log-ratio."),
        "mse": (f"{_KL}k2", "k2 by veRL's name."),
        "k2": (f"{_KL}k2", "Half the squared log-ratio: biased, low variance."),
        "low_var_kl": (f"{_KL}k3", "k3 by veRL's name."),
        "k3": (f"{_KL}k3", "Unbiased, low variance, never negative."),
        "kl+": (f"{_KL}k1_straight", "k1+ by its other name."),
        "k1+": (f"{_KL}k1_straight", "Value of k1, gradient of k2: the KL's unbiased gradient."),
        "abs+": (f"{_KL}absolute_straight", "Value of abs, gradient of k2."),
        "mse+": (f"{_KL}k2", "k2 by veRL's name."),
        "k2+": (f"{_KL}k2", "k2, whose gradient is the KL's already."),
        "low_var_kl+": (f"{_KL}k3_straight", "k3+ by its other name."),
        "k3+": (f"{_KL}k3_straight", "Value of k3, gradient of k2: the KL's unbiased gradient."),
    },
)
register("kl", "full", doc="The KL over the whole vocabulary.", built=False)
_many(
    "engine",
    {
        "hf": (
            "verl_core.rollout.hf:HfEngine",
            "Plain torch, with the trainer or on a pool of its own; any device.",
        ),
        "vllm": ("verl_core.rollout.vllm:make", "vLLM in its own process; GPUs, and a CPU build to try it."),
    },
)
register("engine", "sglang", doc="SGLang in its own process.", built=False)
_many(
    "transport",
    {
        "inplace": ("verl_core.weights.inplace:push", "Same process: the engine is handed the tensors."),
        "ipc": ("verl_core.weights.ipc:IpcSender", "Memory that two processes of one device share, in buckets."),
        "broadcast": ("verl_core.weights.broadcast:BroadcastSender", "NCCL from the trainer to engines apart."),
        "delta": ("verl_core.weights.delta.sender:DeltaSender", "Only values that changed, bit for bit."),
    },
)
register(
    "transport",
    "disk",
    where="verl_core.weights.disk:DiskSender",
    keys=("weights.folder",),
    doc="safetensors in a shared folder.",
)
_many(
    "executor",
    {
        "local": ("verl_core.controller.executors.local:LocalExecutor", "One rank, in the trainer's process."),
        "ray": ("verl_core.controller.executors.ray:RayExecutor", "Any number of ranks, on one machine or many."),
    },
)
_many(
    "tracker",
    {
        "console": ("verl_core.tracking.console:ConsoleTracker", "One line a step."),
        "jsonl": ("verl_core.tracking.jsonl:JsonlTracker", "metrics.jsonl, the run's record."),
        "tensorboard": ("verl_core.tracking.tensorboard_events:TensorboardTracker", "TensorBoard event files."),
        "wandb": ("verl_core.tracking.wandb_run:WandbTracker", "Weights & Biases."),
    },
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
