"""The losses of the papers in plain Python: a sequence at a time, a token at a time, double precision.

A policy loss takes one sequence's produced tokens: log-probs `new`, and once more `held`, which a finite difference
leaves alone where the paper stops the gradient; old log-probs, advantages, which tokens the covariance losses hold
back, and the options. It returns the loss of each token.
"""

import math


def clip(x, low, high):
    return min(max(x, low), high)


def ppo(ratio, a, o):
    return -min(ratio * a, clip(ratio, 1 - o.low, 1 + o.high) * a)


def vanilla(new, held, old, adv, chosen, o):
    out = []
    for x, y, a in zip(new, old, adv, strict=True):
        loss = ppo(math.exp(x - y), a, o)
        out.append(min(loss, -o.c * a) if a < 0 else loss)
    return out


def gspo(new, held, old, adv, chosen, o):
    ratio = math.exp(sum(h - y for h, y in zip(held, old, strict=True)) / len(held))
    return [ppo(ratio * math.exp(x - h), a, o) for x, h, a in zip(new, held, adv, strict=True)]


def gmpo(new, held, old, adv, chosen, o):
    """The product of min(r A, clip(r, e^-low, e^high) A) over |A|, and of that the |o|-th root."""
    product = 1.0
    for x, y, a in zip(new, old, adv, strict=True):
        ratio = math.exp(x - y)
        product *= min(ratio * a, clip(ratio, math.exp(-o.low), math.exp(o.high)) * a) / a if a else 1.0
    return [-sum(adv) / len(adv) * product ** (1 / len(adv))] * len(adv)


def sapo(new, held, old, adv, chosen, o):
    out = []
    for x, y, a in zip(new, old, adv, strict=True):
        tau = o.tau_pos if a > 0 else o.tau_neg
        out.append(-a * 4 / tau / (1 + math.exp(-tau * (math.exp(x - y) - 1))))
    return out


def cispo(new, held, old, adv, chosen, o):
    rows = zip(new, held, old, adv, strict=True)
    return [-a * clip(math.exp(h - y), 1 - o.low, 1 + o.high) * x for x, h, y, a in rows]


def gpg(new, held, old, adv, chosen, o):
    return [-a * x for x, a in zip(new, adv, strict=True)]


def reinforce(new, held, old, adv, chosen, o):
    return [-a * min(math.exp(h - y), o.c) * x for x, h, y, a in zip(new, held, old, adv, strict=True)]


def dppo(divergence):
    def loss(new, held, old, adv, chosen, o):
        out = []
        for x, h, y, a in zip(new, held, old, adv, strict=True):
            p, q = math.exp(y), math.exp(h)
            outwards = q > p if a > 0 else q < p
            left_out = outwards and divergence(p, q) > (o.high if a > 0 else o.low)
            out.append(0.0 if left_out else -a * min(q / p, o.c) * x)
        return out

    return loss


def two_way_kl(p, q):
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def clip_cov(new, held, old, adv, chosen, o):
    rows = zip(new, old, adv, chosen, strict=True)
    return [0.0 if left_out else ppo(math.exp(x - y), a, o) for x, y, a, left_out in rows]


def kl_cov(new, held, old, adv, chosen, o):
    rows = zip(new, old, adv, chosen, strict=True)
    return [-a * math.exp(x - y) + (o.ppo_kl_coef * abs(x - y) if pulled else 0.0) for x, y, a, pulled in rows]


def dro(new, held, old, adv, chosen, o):
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


def k2(x, y):
    return (x - y) ** 2 / 2


def k3(x, y):
    """The mean of q/p - 1 - log(q/p) over tokens of p is the KL; bounded as every system does."""
    return clip(math.exp(clip(y - x, -20, 20)) - 1 - clip(y - x, -20, 20), -10, 10)


PLAIN_KL = {"k1": lambda x, y: x - y, "abs": lambda x, y: abs(x - y), "k2": k2, "k3": k3}
OTHER_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}


def kl(name, new, held, ref):
    """The estimate at each token; behind a + it changes with `new` as k2 does, from its own value at `held`."""
    straight, name = name.endswith("+"), name.removesuffix("+")
    estimate = PLAIN_KL[OTHER_NAMES.get(name, name)]
    if straight:
        return [estimate(h, y) + k2(x, y) - k2(h, y) for x, h, y in zip(new, held, ref, strict=True)]
    return [estimate(x, y) for x, y in zip(new, ref, strict=True)]


def value_loss(new, old, returns, cliprange):
    rows = zip(new, old, returns, strict=True)
    return [0.5 * max((v - r) ** 2, (clip(v, w - cliprange, w + cliprange) - r) ** 2) for v, w, r in rows]


def aggregate(rows, mode, scale):
    """The losses of each sequence's produced tokens as one number; sequences that have none are not given."""
    tokens, total = sum(map(len, rows)), math.fsum(map(math.fsum, rows))
    if not tokens:
        return 0.0
    means = [math.fsum(row) / len(row) for row in rows]
    return {
        "token-mean": total / tokens,
        "token-sum": total,
        "seq-mean-token-sum": total / len(rows),
        "seq-mean-token-mean": math.fsum(means) / len(rows),
        "seq-mean-token-sum-norm": total / len(rows) / scale,
    }[mode]
