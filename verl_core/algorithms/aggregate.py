"""From per-token losses to one number. Every mode is a sum over the produced tokens, each divided by counts of the
whole mini-batch, so the shares of micro-batches and ranks add up to the loss however it is split."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from verl_core.algorithms.loss import Totals
from verl_core.algorithms.produced import Produced

Divisor = Callable[[Produced, Totals, float | None], Tensor | float]


def _tokens(at: Produced, totals: Totals, scale: float | None) -> float:
    return max(totals.tokens, 1)


def _one(at: Produced, totals: Totals, scale: float | None) -> float:
    return 1


def _sequences(at: Produced, totals: Totals, scale: float | None) -> float:
    return max(totals.sequences, 1)


def _sequences_times_own_tokens(at: Produced, totals: Totals, scale: float | None) -> Tensor:
    return at.count_S[at.seq_M] * max(totals.sequences, 1)


def _sequences_times_scale(at: Produced, totals: Totals, scale: float | None) -> float:
    if scale is None or scale <= 0:
        raise ValueError(f"seq-mean-token-sum-norm needs a loss_scale_factor > 0, not {scale}")
    return max(totals.sequences, 1) * scale


# What each produced token's loss is divided by: a number, or one a token [M].
MODES: dict[str, Divisor] = {
    "token-mean": _tokens,
    "token-sum": _one,
    "seq-mean-token-sum": _sequences,
    "seq-mean-token-mean": _sequences_times_own_tokens,
    "seq-mean-token-sum-norm": _sequences_times_scale,
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
    return (value_M / MODES[mode](at, totals, scale)).sum()
