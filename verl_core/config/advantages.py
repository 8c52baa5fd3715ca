"""The advantage estimators that come with rlx: names, formulas, needs and the keys each reads. The arithmetic is in
verl_core/algorithms/advantages."""

from verl_core.config.registry import register

_ESTIMATORS = "verl_core.algorithms.estimators"
_GAMMA, _LAM = "algorithm.gamma", "algorithm.lam"
_BY_STD = "algorithm.norm_adv_by_std_in_grpo"
_GROUP = ("group",)
_TOKEN_BASELINE = "G_t - sum(G_t W_t) / sum(W_t) over the prompt's answers with a token at place t; "
_TOKEN_BASELINE += "W_t = sum over j <= t of 1 - 2 p_j + sum_v p_v^2"

# name: (needs, keys, formula, doc). r: an answer's reward, mean and std over the answers to its prompt
_ADVANTAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str, str]] = {
    "gae": (
        ("critic",),
        (_GAMMA, _LAM),
        "A_t = delta_t + gamma lam A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, whitened; return A + V before that",
        "Generalised advantage estimation from a critic's values, whitened (arXiv 1506.02438).",
    ),
    "grpo": (
        _GROUP,
        (_BY_STD,),
        f"(r - mean) / (std + 1e-6); {_BY_STD}=false: r - mean",
        "Reward against the mean of the prompt's group, over its standard deviation (arXiv 2402.03300).",
    ),
    "rloo": (
        _GROUP,
        (),
        "r - mean of the prompt's other answers",
        "Reward against the mean of the others in the group (arXiv 2402.14740).",
    ),
    "reinforce_plus_plus": (
        (),
        (_GAMMA,),
        "G_t = r_t + gamma G_{t+1}, whitened over the batch",
        "Discounted return, whitened over the batch (arXiv 2501.03262).",
    ),
    "decoupled_gae": (
        ("critic",),
        (_GAMMA, _LAM, "algorithm.lam_critic", "algorithm.lam_alpha"),
        "gae; A with lam, or with max(0, 1 - 1/(lam_alpha l)) for an answer of l tokens; return with lam_critic",
        "GAE with a lambda for the policy, which may follow the length, and one for the critic (arXiv 2504.05118).",
    ),
    "grpo_passk": (
        _GROUP,
        (_BY_STD,),
        "the best answer: (r - second best) / (std + 1e-6); all others 0",
        "Best of the group less the second best, for the best alone (arXiv 2503.19595).",
    ),
    "gdpo": (
        _GROUP,
        (_BY_STD, "algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights"),
        "sum over rewards k of w_k (r_k - mean_k) / (std_k + 1e-6), whitened over the batch",
        "GRPO of each of several rewards apart, added up and whitened over the batch (arXiv 2601.05242).",
    ),
    "reinforce_plus_plus_baseline": (
        _GROUP,
        (),
        "r - mean, whitened over the batch's tokens",
        "Reward against the group's mean, whitened over the batch (arXiv 2501.03262).",
    ),
    "remax": (
        ("greedy",),
        (),
        "G_t - reward of the greedy answer to the prompt, G_t the rewards from t on",
        "Reward to come against that of the greedy answer (arXiv 2310.10505).",
    ),
    "opo": (
        _GROUP,
        (),
        "r - sum(l r) / sum(l) over the prompt's answers, l their tokens",
        "Reward against the group's mean weighted by length (arXiv 2505.23585).",
    ),
    "gpg": (
        _GROUP,
        (),
        "a (r - mean), a = answers of the batch / answers to prompts whose rewards differ",
        "Reward against the group's mean, scaled up for groups that agree (arXiv 2504.02546).",
    ),
    "optimal_token_baseline": (
        ("group", "sum_p_sq"),
        (),
        _TOKEN_BASELINE,
        "A baseline for each place in the answers, weighed by gradient norms (arXiv 2602.07078).",
    ),
    "tir_optimal_token_baseline": (
        ("group", "sum_p_sq"),
        (),
        f"{_TOKEN_BASELINE}; places count produced tokens only",
        "optimal_token_baseline that counts produced tokens only, for answers with tools (arXiv 2602.07078).",
    ),
}


def register_advantages() -> None:
    """Adds them to the registry."""
    for name, (needs, keys, formula, doc) in _ADVANTAGES.items():
        register("advantage", name, where=f"{_ESTIMATORS}:{name}", needs=needs, keys=keys, doc=doc, formula=formula)
