"""The policy losses of the papers in plain Python: a sequence at a time, a token at a time, double precision.

Every function takes the log-probs, old log-probs and advantages of one sequence's produced tokens, which of them the
covariance losses hold back, and the options; it returns the loss of each token.
"""

import math


def clip(x, low, high):
    return min(max(x, low), high)


def ppo(ratio, a, o):
    return -min(ratio * a, clip(ratio, 1 - o.low, 1 + o.high) * a)


def vanilla(new, old, adv, chosen, o):
    out = []
    for x, y, a in zip(new, old, adv, strict=True):
        loss = ppo(math.exp(x - y), a, o)
        out.append(min(loss, -o.c * a) if a < 0 else loss)
    return out


def gspo(new, old, adv, chosen, o):
    ratio = math.exp(sum(x - y for x, y in zip(new, old, strict=True)) / len(new))
    return [ppo(ratio, a, o) for a in adv]


def gmpo(new, old, adv, chosen, o):
    """The product of min(r A, clip(r, e^-low, e^high) A) over |A|, and of that the |o|-th root."""
    product = 1.0
    for x, y, a in zip(new, old, adv, strict=True):
        ratio = math.exp(x - y)
        product *= min(ratio * a, clip(ratio, math.exp(-o.low), math.exp(o.high)) * a) / a
    return [-sum(adv) / len(adv) * product ** (1 / len(adv))] * len(adv)


def sapo(new, old, adv, chosen, o):
    out = []
    for x, y, a in zip(new, old, adv, strict=True):
        tau = o.tau_pos if a > 0 else o.tau_neg
        out.append(-a * 4 / tau / (1 + math.exp(-tau * (math.exp(x - y) - 1))))
    return out


def cispo(new, old, adv, chosen, o):
    return [-a * clip(math.exp(x - y), 1 - o.low, 1 + o.high) * x for x, y, a in zip(new, old, adv, strict=True)]


def gpg(new, old, adv, chosen, o):
    return [-a * x for x, a in zip(new, adv, strict=True)]


def reinforce(new, old, adv, chosen, o):
    return [-a * min(math.exp(x - y), o.c) * x for x, y, a in zip(new, old, adv, strict=True)]


def dppo(divergence):
    def loss(new, old, adv, chosen, o):
        out = []
        for x, y, a in zip(new, old, adv, strict=True):
            p, q = math.exp(y), math.exp(x)
            outwards = q > p if a > 0 else q < p
            left_out = outwards and divergence(p, q) > (o.high if a > 0 else o.low)
            out.append(0.0 if left_out else -a * min(q / p, o.c) * x)
        return out

    return loss


def two_way_kl(p, q):
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def clip_cov(new, old, adv, chosen, o):
    rows = zip(new, old, adv, chosen, strict=True)
    return [0.0 if held else ppo(math.exp(x - y), a, o) for x, y, a, held in rows]


def kl_cov(new, old, adv, chosen, o):
    rows = zip(new, old, adv, chosen, strict=True)
    return [-a * math.exp(x - y) + (o.ppo_kl_coef * abs(x - y) if held else 0.0) for x, y, a, held in rows]


def dro(new, old, adv, chosen, o):
    return [-(a * x - o.dro_beta / 2 * (x - y) ** 2) for x, y, a in zip(new, old, adv, strict=True)]


LOSSES = {
    "vanilla": vanilla,
    "gspo": gspo,
    "gmpo": gmpo,
    "geo_mean": gmpo,
    "sapo": sapo,
    "cispo": cispo,
    "gpg": gpg,
    "reinforce": reinforce,
    "dppo_tv": dppo(lambda p, q: abs(p - q)),
    "dppo_kl": dppo(two_way_kl),
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "dro": dro,
}
