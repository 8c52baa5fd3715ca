"""Advantages from the papers' formulas with plain Python loops in double precision, token by token.

Rows are lists with one list a sequence; `masks` say which tokens the model produced; `groups` which prompt a sequence
answers; `rewards` are one number a sequence. Every function returns rows, 0 under mask 0.
"""

from __future__ import annotations

import itertools
import math
import statistics


def gae(token_rewards, values, masks, gamma, lams, lam_critic):
    """Advantages (before whitening) with each sequence's own lambda, and returns with the critic's: sums of discounted
    temporal differences, written out."""
    advantages, returns = [], []
    for rewards, value, mask, lam in zip(token_rewards, values, masks, lams, strict=True):
        at = [t for t, m in enumerate(mask) if m]
        ahead = {t: value[u] for t, u in itertools.pairwise(at)}
        deltas = [rewards[t] + gamma * ahead.get(t, 0.0) - value[t] for t in at]
        adv, ret = [0.0] * len(mask), [0.0] * len(mask)
        for i, t in enumerate(at):
            later = deltas[i:]
            adv[t] = math.fsum((gamma * lam) ** k * d for k, d in enumerate(later))
            ret[t] = value[t] + math.fsum((gamma * lam_critic) ** k * d for k, d in enumerate(later))
        advantages.append(adv)
        returns.append(ret)
    return advantages, returns


def adaptive_lams(masks, alpha):
    return [max(0.0, 1 - 1 / (alpha * sum(mask))) if sum(mask) else 0.0 for mask in masks]


def returns_of(token_rewards, masks, gamma):
    """Discounted rewards to come, counted in produced tokens."""
    rows = []
    for rewards, mask in zip(token_rewards, masks, strict=True):
        at = [t for t, m in enumerate(mask) if m]
        row = [0.0] * len(mask)
        for i, t in enumerate(at):
            row[t] = math.fsum(gamma**k * rewards[u] for k, u in enumerate(at[i:]))
        rows.append(row)
    return rows


def whiten(rows, masks):
    kept = [x for row, mask in zip(rows, masks, strict=True) for x, m in zip(row, mask, strict=True) if m]
    if not kept:
        return rows
    mean = math.fsum(kept) / len(kept)
    var = math.fsum((x - mean) ** 2 for x in kept) / max(len(kept) - 1, 1)
    return [
        [(x - mean) / math.sqrt(var + 1e-8) if m else 0.0 for x, m in zip(row, mask, strict=True)]
        for row, mask in zip(rows, masks, strict=True)
    ]


def spread(numbers, masks):
    return [[x if m else 0.0 for m in mask] for x, mask in zip(numbers, masks, strict=True)]


def grpo(rewards, groups, by_std=True):
    out = []
    for reward, group in zip(rewards, groups, strict=True):
        peers = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        std = statistics.stdev(peers) if len(peers) > 1 else 0.0
        centred = reward - statistics.fmean(peers)
        out.append(centred / (std + 1e-6) if by_std else centred)
    return out


def grpo_passk(rewards, groups, by_std=True):
    """What the maximum of the group loses when the answer is taken out of it."""
    out = []
    for i, group in enumerate(groups):
        peers = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        others = [r for j, (r, g) in enumerate(zip(rewards, groups, strict=True)) if g == group and j != i]
        lost = max(peers) - max(others) if others else 0.0
        out.append(lost / (statistics.stdev(peers) + 1e-6) if by_std and others else lost)
    return out


def gdpo(rewards_by_key, weights, groups, masks, by_std=True):
    each = [grpo(rewards, groups, by_std) for rewards in rewards_by_key]
    total = [sum(w * adv[i] for w, adv in zip(weights, each, strict=True)) for i in range(len(groups))]
    return whiten(spread(total, masks), masks)


def rloo(rewards, groups):
    out = []
    for i, group in enumerate(groups):
        others = [r for j, (r, g) in enumerate(zip(rewards, groups, strict=True)) if g == group and j != i]
        out.append(rewards[i] - statistics.fmean(others) if others else 0.0)
    return out


def opo(rewards, groups, masks):
    out = []
    for reward, group in zip(rewards, groups, strict=True):
        own = [(r, sum(m)) for r, g, m in zip(rewards, groups, masks, strict=True) if g == group]
        tokens = sum(length for _, length in own)
        out.append(reward - math.fsum(r * length for r, length in own) / tokens if tokens else reward)
    return out


def gpg(rewards, groups):
    useful = 0
    for group in groups:
        useful += len({r for r, g in zip(rewards, groups, strict=True) if g == group}) > 1
    alpha = len(rewards) / useful if useful else 1.0
    return [alpha * a for a in grpo(rewards, groups, by_std=False)]


def optimal_token_baseline(token_rewards, masks, groups, logps, squares, turns, weights=None):
    """Returns less, at each place, the mean of the group's returns there weighed by gradient energy so far."""
    gains = returns_of(token_rewards, masks, 1.0)
    cells: dict[tuple[int, int], list[tuple[float, float]]] = {}
    where = []
    for s, mask in enumerate(masks):
        energy, places, first = 0.0, {}, None
        for t, m in enumerate(mask):
            if not m:
                continue
            first = t if first is None else first
            scale = 1.0 if weights is None else weights[s][t] ** 2
            energy += scale * (1 - 2 * math.exp(logps[s][t]) + squares[s][t])
            places[t] = len(places) if turns else t - first
            cells.setdefault((groups[s], places[t]), []).append((gains[s][t], energy))
        where.append(places)
    out = []
    for s, mask in enumerate(masks):
        row = [0.0] * len(mask)
        for t, place in where[s].items():
            cell = cells[groups[s], place]
            base = 0.0
            if len(cell) > 1:
                base = math.fsum(g * w for g, w in cell) / (math.fsum(w for _, w in cell) + 1e-8)
            row[t] = gains[s][t] - base
        out.append(row)
    return out
