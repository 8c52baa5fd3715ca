"""Losses of a pair: the chosen answer against the rejected one. With h = log-ratio to the reference of the chosen
answer less that of the rejected one, sums over whole answers (nats)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from verl_core.algorithms.preference import Answers, Options

CERTAIN = -1e-6  # nats a token; a likelier answer's odds are those of this one, so that they stay finite


def dpo(answers: Answers, options: Options) -> tuple[Tensor, Tensor]:
    """-log sigmoid(beta h) (DPO, arXiv 2305.18290, eq. 7); with label_smoothing e the pair counts as swapped with
    probability e: -(1-e) log sigmoid(beta h) - e log sigmoid(-beta h) (cDPO)."""
    margin_G = options.beta * answers.gap(answers.ratio_S)
    e = options.label_smoothing
    return -(1 - e) * logsigmoid(margin_G) - e * logsigmoid(-margin_G), margin_G


def ipo(answers: Answers, options: Options) -> tuple[Tensor, Tensor]:
    """(h - 1/(2 beta))^2 (IPO, arXiv 2310.12036, eq. 17), with h over whole answers as there, not over their means."""
    gap_G = answers.gap(answers.ratio_S)
    return (gap_G - 0.5 / options.beta).square(), options.beta * gap_G


def hinge(answers: Answers, options: Options) -> tuple[Tensor, Tensor]:
    """max(0, 1 - beta h): SLiC's calibration (arXiv 2305.10425) on log-ratios, as RSO has it (arXiv 2309.06657)."""
    margin_G = options.beta * answers.gap(answers.ratio_S)
    return (1 - margin_G).relu(), margin_G


def simpo(answers: Answers, options: Options) -> tuple[Tensor, Tensor]:
    """-log sigmoid(beta (m_w - m_l) - gamma), m an answer's mean log-prob a token (SimPO, arXiv 2405.14734, eq. 6).
    The margin is without gamma."""
    margin_G = options.beta * answers.gap(answers.mean_logp_S)
    return -logsigmoid(margin_G - options.simpo_gamma), margin_G


def orpo(answers: Answers, options: Options) -> tuple[Tensor, Tensor]:
    """-m_w - weight log sigmoid(log odds(m_w) - log odds(m_l)), odds(m) = e^m / (1 - e^m), m an answer's mean log-prob
    a token (ORPO, arXiv 2403.07691, section 4). The margin is the odds' log-ratio."""
    mean_S = answers.mean_logp_S
    likely_S = mean_S.clamp(max=CERTAIN)
    margin_G = answers.gap(likely_S - log1mexp(likely_S))
    nll_G = -answers.gap(torch.where(answers.chosen_S, mean_S, 0.0))
    return nll_G - options.orpo_weight * logsigmoid(margin_G), margin_G


def log1mexp(value: Tensor) -> Tensor:
    """log(1 - e^x) for x < 0, exact at both ends (Maechler 2012); each branch is kept from the other's range, so that
    no inf of it becomes a NaN in the gradient."""
    near = value > -0.6931
    small, large = torch.where(near, value, -0.5), torch.where(near, -1.0, value)
    return torch.where(near, (-torch.expm1(small)).log(), torch.log1p(-large.exp()))
