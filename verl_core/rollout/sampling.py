"""Drawing tokens: temperature, top-k, top-p and the log-prob under the distribution that was drawn from.

A draw is a pure function of the logits, the request's seed and the position of the token in its sequence: no generator
state, so a request gives the same tokens alone, in any batch, and when it is continued after an interruption.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from verl_core.rollout.protocol import Sampling
from verl_core.rollout.transfer import upload


def _signed(bits: int) -> int:
    """The int64 with these 64 bits: torch multiplies and adds those modulo 2**64."""
    bits &= (1 << 64) - 1
    return bits - (1 << 64) if bits >> 63 else bits


_GOLDEN = _signed(0x9E3779B97F4A7C15)


def _right(x_B: Tensor, bits: int) -> Tensor:
    """Shift of the bits to the right, zeros behind them."""
    return (x_B >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x_B: Tensor) -> Tensor:
    """SplitMix64's output function: a bijection of 64-bit integers in which every input bit moves every output bit
    (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014)."""
    x_B = (x_B ^ _right(x_B, 30)) * _signed(0xBF58476D1CE4E5B9)
    x_B = (x_B ^ _right(x_B, 27)) * _signed(0x94D049BB133111EB)
    return x_B ^ _right(x_B, 31)


def streams(seed_B: Tensor) -> Tensor:
    """Where each seed's numbers begin. Shapes [B] int64 -> [B] int64."""
    return _mix(seed_B + _GOLDEN)


def uniforms(stream_B: Tensor, position_B: Tensor) -> Tensor:
    """One number in [0, 1) for each (stream, position) pair. Shapes [B] int64 -> [B] float64."""
    return _right(_mix(stream_B + (position_B + 1) * _GOLDEN), 11).double() * 2.0**-53


class Kinds(NamedTuple):
    """What some row of a batch asks for; what none does is not computed."""

    warm: bool  # a temperature other than 1
    greedy: bool
    filtered: bool  # top-k or top-p

    @staticmethod
    def of(sampling: Iterable[Sampling]) -> Kinds:
        unlike = set(sampling)
        drawn = [s for s in unlike if s.temperature != 0]
        return Kinds(
            warm=any(s.temperature != 1 for s in drawn),
            greedy=len(drawn) < len(unlike),
            filtered=any(s.top_k > 0 or s.top_p < 1 for s in drawn),
        )


class Columns(NamedTuple):
    """The sampling parameters of B rows on the device, one entry a row in each. A greedy row has those of a draw that
    changes no log-prob."""

    stream_B: Tensor
    temperature_B1: Tensor
    greedy_B1: Tensor
    top_k_B1: Tensor
    top_p_B1: Tensor

    @staticmethod
    def of(sampling: Sequence[Sampling], seeds: Iterable[int], device: torch.device) -> Columns:
        """`seeds`: one integer a row, any size (taken modulo 2**64)."""
        greedy_B = [s.temperature == 0 for s in sampling]
        rows = list(zip(sampling, greedy_B, strict=True))
        return Columns(
            streams(upload([_signed(seed) for seed in seeds], device)),
            upload([1.0 if cold else s.temperature for s, cold in rows], device, torch.float32)[:, None],
            upload(greedy_B, device, torch.bool)[:, None],
            upload([-1 if cold else s.top_k for s, cold in rows], device)[:, None],
            upload([1.0 if cold else s.top_p for s, cold in rows], device, torch.float64)[:, None],
        )

    def first(self, rows: int) -> Columns:
        """Views of the first rows."""
        return Columns(*(column[:rows] for column in self))

    def put(self, row_F: Tensor, others: Columns) -> None:
        """Writes other rows over the rows at these indices."""
        for column, other in zip(self, others, strict=True):
            column[row_F] = other

    def at(self, row_F: Tensor) -> Columns:
        """Copies of the rows at these indices."""
        return Columns(*(column[row_F] for column in self))


def draw(logits_BV: Tensor, position_B: Tensor, columns: Columns, kinds: Kinds) -> tuple[Tensor, Tensor]:
    """Draws one id a row by inverting the cumulative distribution at a uniform number. Never waits for the device.

    Args:
        logits_BV: the model's logits, any float dtype. The arithmetic is float32, the cumulative sum exact.
        position_B: position in the sequence of the token to draw, int64.
        columns: the rows' parameters.
        kinds: what they ask for at most.

    Returns:
        ids_B int64 and logp_B float32: the log-prob after temperature, top-k and top-p. A greedy row (temperature
        0) takes the largest logit and reports its log-prob at temperature 1. Where a row's logits hold NaN or
        +inf its logp is NaN and its id means nothing.
    """
    score_BV = logits_BV.float()
    if kinds.warm:
        score_BV = score_BV / columns.temperature_B1
    score_BV = score_BV - score_BV.amax(-1, keepdim=True)
    weight_BV = score_BV.exp()
    if kinds.filtered:
        weight_BV = _nucleus(weight_BV, columns.top_k_B1, columns.top_p_B1)
    cumulative_BV = _cumulative(weight_BV)
    total_B1 = cumulative_BV[:, -1:]
    uniform_B1 = uniforms(columns.stream_B, position_B)[:, None]
    # Strictly below the total, so that the first entry above the target is one with weight.
    target_B1 = torch.minimum((uniform_B1 * total_B1).long(), total_B1 - 1)
    id_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True)
    if kinds.greedy:
        id_B1 = torch.where(columns.greedy_B1, score_BV.argmax(-1, keepdim=True), id_B1)
    id_B1 = id_B1.clamp(max=logits_BV.shape[-1] - 1)  # only a row of NaN gets past the end
    logp_B1 = score_BV.gather(-1, id_B1) - weight_BV.sum(-1, keepdim=True, dtype=torch.float64).log()
    return id_B1[:, 0], logp_B1[:, 0].float()


def _nucleus(weight_BV: Tensor, top_k_B1: Tensor, top_p_B1: Tensor) -> Tensor:
    """Zeroes what top-k and then top-p leave out: the k heaviest ids, and of these the smallest set whose share is
    at least top_p. Equal weights rank by id."""
    sorted_BV, order_BV = weight_BV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(weight_BV.shape[-1], device=weight_BV.device)
    sorted_BV = sorted_BV.masked_fill((top_k_B1 > 0) & (rank_V >= top_k_B1), 0.0)
    cumulative_BV = _cumulative(sorted_BV)
    before_BV = cumulative_BV - _fixed(sorted_BV)
    outside_BV = (before_BV >= top_p_B1 * cumulative_BV[:, -1:]) & (top_p_B1 < 1.0)
    return torch.zeros_like(weight_BV).scatter(-1, order_BV, sorted_BV.masked_fill(outside_BV, 0.0))


def _fixed(weight_BV: Tensor) -> Tensor:
    """Weights in [0, 1] as int64 multiples of 2**-43: room for a vocabulary of a million, and what is lost is less than
    1e-13 of the heaviest id."""
    return (weight_BV * 2.0**43).long()  # a power of two: exact in float32


def _cumulative(weight_BV: Tensor) -> Tensor:
    """Cumulative sums over the vocabulary as integers: exact, so the same in every order of adding. A sum of floats on
    a GPU is not, and torch refuses it under trainer.deterministic."""
    return _fixed(weight_BV).cumsum_(-1)
