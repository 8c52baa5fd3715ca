"""The policy losses that come with rlx: names, formulas and the keys each reads. The arithmetic is in
verl_core/algorithms/policy_loss."""

from verl_core.config.registry import register

_BOUNDS = ("actor.clip_ratio", "actor.clip_ratio_low", "actor.clip_ratio_high")
_CAP = ("actor.clip_ratio_c",)
_CLIP = "max(-A r, -A clip(r, 1-low, 1+high))"
_DPPO = "-A min(sg(r), c) logp where D <= high (A > 0) or low (A <= 0), or r leads back; D = "
_COV = "Cov = (logp_old - mean)(A - mean) over the mini-batch"
_GMPO = "-A exp(mean_t of the log-ratio, held below high for A > 0 and above -low for A < 0)"

# name: (module, its keys under actor, formula, doc)
_LOSSES: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "vanilla": (
        "clipped",
        (*_BOUNDS, *_CAP),
        f"{_CLIP}; for A < 0 at most -A c",
        "Clipped ratio with a dual clip (arXiv 1707.06347, 1912.09729).",
    ),
    "gspo": (
        "clipped",
        _BOUNDS,
        f"{_CLIP} with r the sequence's geometric mean ratio, gradient by token",
        "Clipped ratio of whole sequences (arXiv 2507.18071).",
    ),
    "gmpo": ("clipped", _BOUNDS, _GMPO, "Geometric mean of a sequence's ratios (arXiv 2507.20673)."),
    "geo_mean": ("clipped", _BOUNDS, _GMPO, "gmpo by veRL's name."),
    "sapo": (
        "clipped",
        ("actor.tau_pos", "actor.tau_neg"),
        "-A (4/tau) sigmoid(tau (r - 1)), tau = tau_pos for A > 0, else tau_neg",
        "Soft gate in place of the clip (arXiv 2511.20347).",
    ),
    "cispo": (
        "weighted",
        _BOUNDS,
        "-A sg(clip(r, 1-low, 1+high)) logp",
        "Clipped importance weight; every token keeps a gradient (arXiv 2506.13585).",
    ),
    "gpg": ("weighted", (), "-A logp", "Plain policy gradient (arXiv 2504.02546)."),
    "reinforce": (
        "weighted",
        _CAP,
        "-A min(sg(r), c) logp",
        "Policy gradient with a truncated importance weight (Williams 1992).",
    ),
    "dppo_tv": (
        "weighted",
        (*_BOUNDS, *_CAP),
        f"{_DPPO}|p - p_old|",
        "Bound on how far a token's probability moves; low and high are that bound (arXiv 2602.04879).",
    ),
    "dppo_kl": (
        "weighted",
        (*_BOUNDS, *_CAP),
        f"{_DPPO}KL of (token, any other), old against new",
        "Bound on the two-way KL of a token, nats; low and high are that bound (arXiv 2602.04879).",
    ),
    "clip_cov": (
        "covariance",
        (*_BOUNDS, *(f"actor.policy_loss.clip_cov_{part}" for part in ("ratio", "lb", "ub"))),
        f"{_CLIP}, 0 on a random clip_cov_ratio of the tokens among lb < Cov < ub; {_COV}",
        "Leaves out tokens that cost entropy (arXiv 2505.22617).",
    ),
    "kl_cov": (
        "covariance",
        ("actor.policy_loss.kl_cov_ratio", "actor.policy_loss.ppo_kl_coef"),
        f"-A r, plus ppo_kl_coef |logp - logp_old| on the kl_cov_ratio with the largest Cov; {_COV}",
        "Penalises moving the tokens that cost entropy (arXiv 2505.22617).",
    ),
    "dro": (
        "weighted",
        ("actor.policy_loss.dro_beta",),
        "-(A logp - beta/2 (logp - logp_old)^2)",
        "Policy gradient held to the old policy by a square (arXiv 2405.19107).",
    ),
}


def register_policy_losses() -> None:
    """Adds them to the registry."""
    for name, (module, keys, formula, doc) in _LOSSES.items():
        function = "gmpo" if name == "geo_mean" else name
        where = f"verl_core.algorithms.policy_loss.{module}:{function}"
        register("policy_loss", name, where=where, keys=keys, doc=doc, formula=formula)
