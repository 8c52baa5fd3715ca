"""Preference learning, as the catalogue has it: losses of pairs and of single answers, and the algorithms that feed
them. The arithmetic is in verl_core/algorithms/preference, the data's way in verl_core/controller/flows."""

from collections.abc import Mapping

from verl_core.config.algorithms import PRESET
from verl_core.config.registry import entry, register
from verl_core.config.schema import RlxConfig

_SECTION = "algorithm.preference"
_FLOWS = "verl_core.controller.flows"
_H = "h = log-ratio to the reference of the chosen answer less that of the rejected one"
_MEAN = "m = mean log-prob a token"

# name: (module, needs, its keys under algorithm.preference, formula, doc)
_LOSSES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str, str]] = {
    "dpo": (
        "pairs",
        ("pairs", "reference"),
        ("beta", "label_smoothing"),
        f"-log sigmoid(beta h), with label_smoothing of the swapped pair; {_H}",
        "Direct preference optimisation (arXiv 2305.18290).",
    ),
    "ipo": (
        "pairs",
        ("pairs", "reference"),
        ("beta",),
        f"(h - 1/(2 beta))^2; {_H}, sums over whole answers",
        "Identity preference optimisation: a fixed lead, not an ever larger one (arXiv 2310.12036).",
    ),
    "hinge": (
        "pairs",
        ("pairs", "reference"),
        ("beta",),
        f"max(0, 1 - beta h); {_H}",
        "SLiC's hinge on log-ratios (arXiv 2305.10425, 2309.06657).",
    ),
    "simpo": (
        "pairs",
        ("pairs",),
        ("beta", "simpo_gamma"),
        f"-log sigmoid(beta (m_chosen - m_rejected) - simpo_gamma); {_MEAN}",
        "Length-normalised, without a reference (arXiv 2405.14734).",
    ),
    "orpo": (
        "pairs",
        ("pairs",),
        ("orpo_weight",),
        "-m_chosen - orpo_weight log sigmoid(log odds(m_chosen) - log odds(m_rejected)); "
        f"odds(m) = e^m / (1 - e^m), {_MEAN}",
        "Likelihood of the chosen answer and an odds ratio, without a reference (arXiv 2403.07691).",
    ),
    "kto": (
        "answers",
        ("reference",),
        ("beta", "desirable_weight", "undesirable_weight"),
        "w (1 - sigmoid(+-beta (r - z0))), + for desirable; r = log-ratio to the reference, z0 = max(0, mean r of "
        "other prompts' answers)",
        "Desirable and undesirable answers, paired or not (arXiv 2402.01306).",
    ),
    "sppo": (
        "answers",
        ("reference",),
        ("sppo_eta",),
        "(r - sppo_eta (P - 1/2))^2; r = log-ratio to the reference, P = win rate",
        "Self-play preference optimisation's square (arXiv 2405.00675).",
    ),
}


def register_preferences() -> None:
    """Adds losses and algorithms to the registry."""
    for name, (module, needs, keys, formula, doc) in _LOSSES.items():
        where = f"verl_core.algorithms.preference.{module}:{name}"
        own = tuple(f"{_SECTION}.{key}" for key in keys)
        register("preference_loss", name, where=where, needs=needs, keys=own, doc=doc, formula=formula)
    for name, loss, values, doc in (
        ("dpo", "dpo", {"beta": 0.1}, "Direct preference optimisation on pairs (arXiv 2305.18290)."),
        ("ipo", "ipo", {"beta": 0.1}, "DPO's data with IPO's square (arXiv 2310.12036)."),
        ("kto", "kto", {"beta": 0.1}, "Learns from answers marked as desirable or not (arXiv 2402.01306)."),
        ("orpo", "orpo", {}, "Likelihood and odds ratio on pairs, no reference (arXiv 2403.07691)."),
        ("simpo", "simpo", {"beta": 2.0}, "Length-normalised lead on pairs, no reference (arXiv 2405.14734)."),
    ):
        needs = ("dataset", "labels" if name == "kto" else "pairs")
        _algorithm(name, f"{_FLOWS}.preference:PreferenceFlow", needs, loss, values, doc)
    online = f"{_FLOWS}.online_preference"
    _algorithm(
        "online_dpo",
        f"{online}:OnlineDpoFlow",
        ("group",),
        "dpo",
        {"beta": 0.1},
        "DPO on the best and the worst of a prompt's own answers, by reward (arXiv 2402.04792).",
    )
    _algorithm(
        "sppo",
        f"{online}:SppoFlow",
        ("group",),
        "sppo",
        {},
        "Self-play: each answer's log-ratio to the policy that gave it is drawn to its win rate (arXiv 2405.00675).",
    )
    _algorithm(
        "spin",
        f"{online}:SpinFlow",
        ("demonstration",),
        "dpo",
        {"beta": 0.1, "ref_update_freq": 10},
        "Self-play: the demonstration against one's own answer (arXiv 2401.01335).",
    )


def _algorithm(
    name: str, where: str, needs: tuple[str, ...], loss: str, values: Mapping[str, object], doc: str
) -> None:
    of_loss = entry("preference_loss", loss)
    # SPPO's reference is the policy that sampled, of which the run has the log-probs.
    reference = ("reference",) if "reference" in of_loss.needs and name != "sppo" else ()
    values = {"loss": loss, **({"ref_update_freq": 0} if reference else {}), **values}
    options = PRESET | {f"{_SECTION}.{key}": value for key, value in values.items()}
    read = ("data.messages_key", "data.response_key") if "demonstration" in needs else ()
    keys = tuple(dict.fromkeys((*options, *of_loss.keys, *read)))
    register(
        "algorithm",
        name,
        where=where,
        needs=(*needs, *reference),
        keys=keys,
        doc=doc,
        formula=of_loss.formula,
        options=options,
    )


def prefers(config: RlxConfig) -> bool:
    """Whether the algorithm learns from which answers are preferred."""
    return f"{_SECTION}.loss" in (entry("algorithm", config.algorithm.name).options or {})


def compares_pairs(config: RlxConfig) -> bool:
    """Whether an effective configuration's preference loss takes a chosen answer against a rejected one."""
    loss = config.algorithm.preference.loss
    return prefers(config) and loss is not None and "pairs" in entry("preference_loss", loss).needs


def reference_of_preferences(config: RlxConfig) -> bool:
    """Whether an effective configuration that prefers needs the log-probs of a reference model."""
    loss = config.algorithm.preference.loss
    asked = loss is not None and "reference" in entry("preference_loss", loss).needs
    return asked and "reference" in entry("algorithm", config.algorithm.name).needs
