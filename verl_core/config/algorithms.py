"""The algorithms: presets of defaults by the paper's name, as the catalogue has them."""

from verl_core.config.registry import entry, register

POLICY_FLOW = "verl_core.controller.flows:PolicyFlow"

_SEQUENCES = {"actor.loss_agg_mode": "seq-mean-token-mean"}
PRESET = {
    "actor.loss_agg_mode": "token-mean",
    "actor.policy_loss.loss_mode": "vanilla",
    "actor.positive_lm_coef": 0.0,
    "actor.use_kl_loss": False,
    "algorithm.filter_groups.enable": False,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.use_pf_ppo": False,
}


def _algorithm(name: str, estimator: str, doc: str, changes: dict[str, object] | None = None) -> None:
    """A preset: values for keys that are null."""
    options = {**PRESET, "algorithm.adv_estimator": estimator, **(changes or {})}
    needs = entry("advantage", estimator).needs
    keys = tuple(options)
    register("algorithm", name, where=POLICY_FLOW, needs=needs, keys=keys, doc=doc, options=options)


def register_algorithms() -> None:
    """Adds all of them to the registry, where the advantages are."""
    _register_policy_gradients()
    _register_from_datasets()


def _register_policy_gradients() -> None:
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
    )
    _algorithm("rloo", "rloo", "REINFORCE with a leave-one-out baseline (arXiv 2402.14740).")
    _algorithm("reinforce_plus_plus", "reinforce_plus_plus", "REINFORCE++ (arXiv 2501.03262).")
    for name, doc in (
        ("reinforce_plus_plus_baseline", "REINFORCE++ with the group's mean as baseline (arXiv 2501.03262)."),
        ("remax", "REINFORCE with the greedy answer's reward as baseline (arXiv 2310.10505)."),
        ("opo", "REINFORCE with the length-weighted optimal baseline (arXiv 2505.23585)."),
        ("grpo_passk", "GRPO for the best of the group (arXiv 2503.19595)."),
        ("gdpo", "GRPO for several rewards (arXiv 2601.05242)."),
        ("optimal_token_baseline", "REINFORCE with the optimal token baseline (arXiv 2602.07078)."),
        ("tir_optimal_token_baseline", "The same for answers with tools (arXiv 2602.07078)."),
    ):
        _algorithm(name, name, doc)
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
        {
            "actor.clip_ratio_low": 0.2,
            "actor.clip_ratio_high": 0.28,
            "actor.positive_lm_coef": 0.1,
            "algorithm.lam_alpha": 0.05,
        },
    )
    for name, estimator, loss, more, doc in (
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
         "REINFORCE with the group's mean as baseline, whitened over the batch; truncated ratio (Williams 1992)."),
    ):  # fmt: skip
        _algorithm(name, estimator, doc, {"actor.policy_loss.loss_mode": loss, **more})


def _register_from_datasets() -> None:
    register(
        "algorithm",
        "sft",
        where="verl_core.controller.flows.supervised:SftFlow",
        needs=("dataset",),
        keys=("data.messages_key", "data.prompt_key", "data.response_key"),
        options=PRESET,
        doc="Supervised fine-tuning on the assistant's turns of demonstrations.",
        formula="L = -sum_t m_t log pi(y_t | y_<t) / sum_t m_t, m_t = 1 on the assistant's tokens, over the mini-batch",
    )
    register(
        "algorithm",
        "reward_model",
        where="verl_core.controller.flows.reward_model:RewardModelFlow",
        needs=("dataset", "pairs", "value_head"),
        keys=("data.prompt_key",),
        options=PRESET,
        doc="Bradley-Terry reward model on pairs of a chosen and a rejected answer (arXiv 2203.02155).",
        formula="L = -log sigmoid(r(x, y_w) - r(x, y_l) - margin), mean over pairs; r: value head at the last token",
    )
