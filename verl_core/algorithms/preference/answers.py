"""Losses of an answer by itself. With r = its log-ratio to the reference, a sum over the whole answer (nats)."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_core.algorithms.preference import Answers, Options


def kto(answers: Answers, options: Options) -> tuple[Tensor, Tensor]:
    """w (1 - sigmoid(m)), m = beta (r - z0) for a desirable answer and beta (z0 - r) for an undesirable one, w the
    weight of its kind (KTO, arXiv 2402.01306, section 4). z0 is `kl_baseline`: it has no gradient."""
    wanted_S = answers.chosen_S
    above_S = options.beta * (answers.ratio_S - options.kl_baseline)
    margin_S = torch.where(wanted_S, above_S, -above_S)
    loss_S = torch.sigmoid(-margin_S)
    return torch.where(wanted_S, options.desirable_weight * loss_S, options.undesirable_weight * loss_S), margin_S


def sppo(answers: Answers, options: Options) -> tuple[Tensor, Tensor]:
    """(r - eta (P - 1/2))^2, P = win_S the answer's win rate against those of its group (SPPO, arXiv 2405.00675,
    section 4). The margin is r where the answer wins more often than it loses, -r where less; others have none."""
    ratio_S, edge_S = answers.ratio_S, answers.win_S - 0.5
    return (ratio_S - options.sppo_eta * edge_S).square(), (ratio_S * edge_S.sign())[edge_S != 0]
