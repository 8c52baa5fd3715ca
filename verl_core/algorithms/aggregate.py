"""From per-token losses to one number. Every mode is a weighted sum over the produced tokens whose weights divide by
counts of the whole mini-batch, so the shares of micro-batches and ranks add up to the loss however it is split."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from verl_core.algorithms.loss import Totals
from verl_core.algorithms.produced import Produced

Weights = Callable[[Produced, Totals, float | None], Tensor | float]


def _token_mean(at: Produced, totals: Totals, scale: float | None) -> float:
    return 1 / max(totals.tokens, 1)


def _token_sum(at: Produced, totals: Totals, scale: float | None) -> float:
    return 1.0


def _seq_mean_token_sum(at: Produced, totals: Totals, scale: float | None) -> float:
    return 1 / max(totals.sequences, 1)


def _seq_mean_token_mean(at: Produced, totals: Totals, scale: float | None) -> Tensor:
    return 1 / (at.count_S[at.seq_M] * max(totals.sequences, 1))


def _seq_mean_token_sum_norm(at: Produced, totals: Totals, scale: float | None) -> float:
    if scale is None or scale <= 0:
        raise ValueError(f"seq-mean-token-sum-norm needs a loss_scale_factor > 0, not {scale}")
    return 1 / (max(totals.sequences, 1) * scale)


# The weight of each produced token's loss.
MODES: dict[str, Weights] = {
    "token-mean": _token_mean,
    "token-sum": _token_sum,
    "seq-mean-token-sum": _seq_mean_token_sum,
    "seq-mean-token-mean": _seq_mean_token_mean,
    "seq-mean-token-sum-norm": _seq_mean_token_sum_norm,
}


def aggregate(value_M: Tensor, at: Produced, totals: Totals, mode: str, scale: float | None = None) -> Tensor:
    """This micro-batch's share of the aggregated loss, a scalar; 0 (with a gradient of 0) when nothing was produced.

    token-mean: mean over all tokens (DAPO, arXiv 2503.14476). token-sum: their sum. seq-mean-token-mean: mean over
    sequences of each one's token mean (GRPO, arXiv 2402.03300). seq-mean-token-sum: mean over sequences of each one's
    sum. seq-mean-token-sum-norm: that divided by `scale` (Dr. GRPO, arXiv 2503.20783). Sequences without a produced
    token are not counted. Raises ValueError for an unknown mode.
    """
    if mode not in MODES:
        raise ValueError(f"unknown loss_agg_mode {mode!r}; there are {', '.join(MODES)}")
    weight = MODES[mode](at, totals, scale)
    # one scalar weight for all tokens leaves the sum exact and is applied once
    return (value_M * weight).sum() if isinstance(weight, Tensor) else value_M.sum() * weight
