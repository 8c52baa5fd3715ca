"""The KL estimators and aggregations that come with rlx: names and formulas. The arithmetic is in
verl_core/algorithms/{kl,aggregate}.py."""

from verl_core.config.registry import register

FULL_KL = "full"  # no estimate from sampled tokens: engines compute it

_STRAIGHT = "gradient that of d^2/2"

# name: (function, formula, doc). d: log-prob of the token less the reference's
_KL: dict[str, tuple[str, str, str]] = {
    "kl": ("k1", "d", "k1 by veRL's name."),
    "k1": ("k1", "d", "Log-ratio: unbiased, high variance."),
    "abs": ("absolute", "|d|", "Absolute log-ratio."),
    "mse": ("k2", "d^2/2", "k2 by veRL's name."),
    "k2": ("k2", "d^2/2", "Half the squared log-ratio: biased, low variance."),
    "low_var_kl": ("k3", "e^-d - 1 + d", "k3 by veRL's name."),
    "k3": ("k3", "e^-d - 1 + d", "Unbiased, low variance, never negative."),
    "kl+": ("k1_straight", f"d, {_STRAIGHT}", "k1+ by its other name."),
    "k1+": ("k1_straight", f"d, {_STRAIGHT}", "Value of k1, gradient of k2: the KL's unbiased gradient."),
    "abs+": ("absolute_straight", f"|d|, {_STRAIGHT}", "Value of abs, gradient of k2."),
    "mse+": ("k2", "d^2/2", "k2 by veRL's name."),
    "k2+": ("k2", "d^2/2", "k2, whose gradient is the KL's already."),
    "low_var_kl+": ("k3_straight", f"e^-d - 1 + d, {_STRAIGHT}", "k3+ by its other name."),
    "k3+": (
        "k3_straight",
        f"e^-d - 1 + d, {_STRAIGHT}",
        "Value of k3, gradient of k2: the KL's unbiased gradient.",
    ),
}

# name: (formula, keys besides its own, doc), over the produced tokens of a mini-batch on all ranks
_AGGREGATIONS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "token-mean": ("sum over tokens / tokens", (), "Mean over all tokens of the mini-batch."),
    "token-sum": ("sum over tokens", (), "Sum over all tokens of the mini-batch."),
    "seq-mean-token-sum": ("sum over tokens / sequences", (), "Mean over sequences of each one's sum."),
    "seq-mean-token-mean": (
        "sum over sequences of (sum over its tokens / its tokens) / sequences",
        (),
        "Mean over sequences of each one's mean.",
    ),
    "seq-mean-token-sum-norm": (
        "sum over tokens / (sequences x actor.loss_scale_factor)",
        ("actor.loss_scale_factor",),
        "seq-mean-token-sum over actor.loss_scale_factor (arXiv 2503.20783).",
    ),
}


def register_loss_terms() -> None:
    """Adds them to the registry."""
    for name, (function, formula, doc) in _KL.items():
        where = f"verl_core.algorithms.kl:{function}"
        formula = f"{formula}; d = logp - logp_ref"
        register("kl", name, where=where, needs=("reference",), doc=doc, formula=formula)
    register(
        "kl",
        FULL_KL,
        where="verl_core.algorithms.kl:full_kl",
        needs=("reference",),
        doc="The KL itself, over the whole vocabulary: no estimate.",
        formula="sum over the vocabulary of p (log p - log p_ref)",
    )
    for name, (formula, keys, doc) in _AGGREGATIONS.items():
        where = "verl_core.algorithms.aggregate:aggregate"
        register("aggregation", name, where=where, keys=keys, doc=doc, formula=formula)
