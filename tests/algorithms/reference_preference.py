"""The preference losses of the papers in plain Python, double precision: a pair, or an answer, at a time.

An answer is its produced tokens' log-probs under the policy (`logp`) and the reference (`ref`), and how often it is
preferred (`win`).
"""

import math


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def ratio(answer):
    return sum(answer["logp"]) - sum(answer["ref"])


def mean(answer):
    return sum(answer["logp"]) / len(answer["logp"])


def dpo(won, lost, o):
    h = o.beta * (ratio(won) - ratio(lost))
    return -(1 - o.label_smoothing) * math.log(sigmoid(h)) - o.label_smoothing * math.log(sigmoid(-h))


def ipo(won, lost, o):
    return (ratio(won) - ratio(lost) - 1 / (2 * o.beta)) ** 2


def hinge(won, lost, o):
    return max(0.0, 1 - o.beta * (ratio(won) - ratio(lost)))


def simpo(won, lost, o):
    return -math.log(sigmoid(o.beta * mean(won) - o.beta * mean(lost) - o.simpo_gamma))


def orpo(won, lost, o):
    odds = [math.exp(mean(x)) / (1 - math.exp(mean(x))) for x in (won, lost)]
    return -mean(won) - o.orpo_weight * math.log(sigmoid(math.log(odds[0] / odds[1])))


def kto(answer, o):
    if answer["win"] > 0.5:
        return o.desirable_weight * (1 - sigmoid(o.beta * (ratio(answer) - o.kl_baseline)))
    return o.undesirable_weight * (1 - sigmoid(o.beta * (o.kl_baseline - ratio(answer))))


def sppo(answer, o):
    return (ratio(answer) - o.sppo_eta * (answer["win"] - 0.5)) ** 2


PAIRS = {"dpo": dpo, "ipo": ipo, "hinge": hinge, "simpo": simpo, "orpo": orpo}
ANSWERS = {"kto": kto, "sppo": sppo}


def loss(name, answers, o):
    """Mean over pairs, or answers, of those that have a produced token."""
    if name in ANSWERS:
        parts = [ANSWERS[name](a, o) for a in answers if a["logp"]]
        return sum(parts) / len(parts) if parts else 0.0
    groups = {}
    for answer in answers:
        groups.setdefault(answer["group"], []).append(answer)
    pairs = [sorted(two, key=lambda a: -a["win"]) for two in groups.values()]
    parts = [PAIRS[name](won, lost, o) for won, lost in pairs if won["logp"] or lost["logp"]]
    return sum(parts) / len(parts) if parts else 0.0
