"""Drawing tokens: temperature, top-k, top-p and the log-prob under the distribution that was drawn from.

A draw is a pure function of the logits, the request's seed and the position of the token in its sequence: no generator
state, so a request gives the same tokens alone, in any batch, and when it is continued after an interruption.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from verl_core.rollout.protocol import Sampling

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def _mix(x_B: np.ndarray) -> np.ndarray:
    """SplitMix64's output function: a bijection of 64-bit integers in which every input bit moves every output bit
    (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014)."""
    x_B = (x_B ^ (x_B >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x_B = (x_B ^ (x_B >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x_B ^ (x_B >> np.uint64(31))


def uniforms(seed_B: np.ndarray, position_B: np.ndarray) -> np.ndarray:
    """One number in [0, 1) for each (seed, position) pair. Shapes [B] uint64 -> [B] float64."""
    with np.errstate(over="ignore"):
        stream_B = _mix(seed_B + _GOLDEN)
        bits_B = _mix(stream_B + (position_B + np.uint64(1)) * _GOLDEN)
    return (bits_B >> np.uint64(11)).astype(np.float64) * 2.0**-53


class SamplingBatch:
    """The sampling parameters of B rows, ready to draw one token for each.

    Args:
        sampling: one entry a row; rows may differ.
        seeds: one integer a row, any size (taken modulo 2**64).
        device: where the logits live.
    """

    def __init__(self, sampling: Sequence[Sampling], seeds: Sequence[int], device: torch.device):
        self.seed_B = np.array([s & _MASK for s in seeds], dtype=np.uint64)
        greedy_B = [s.temperature == 0 for s in sampling]
        warmth = [1.0 if s.temperature == 0 else s.temperature for s in sampling]
        self.temperature_B1 = None
        if any(t != 1.0 for t in warmth):
            self.temperature_B1 = torch.tensor(warmth, dtype=torch.float32, device=device)[:, None]
        self.greedy_B = torch.tensor(greedy_B, device=device) if any(greedy_B) else None
        filtered = [i for i, s in enumerate(sampling) if not greedy_B[i] and (s.top_k > 0 or s.top_p < 1.0)]
        self.filtered_F = torch.tensor(filtered, dtype=torch.int64, device=device) if filtered else None
        self.top_k_F1 = torch.tensor([sampling[i].top_k for i in filtered], device=device)[:, None]
        self.top_p_F1 = torch.tensor([sampling[i].top_p for i in filtered], dtype=torch.float64, device=device)[:, None]

    def draw(self, logits_BV: Tensor, position_B: np.ndarray) -> tuple[Tensor, Tensor]:
        """Draws one id a row by inverting the cumulative distribution at a uniform number.

        Args:
            logits_BV: the model's logits, any float dtype. The arithmetic is float32, the cumulative sum exact.
            position_B: position in the sequence of the token to draw, uint64.

        Returns:
            ids_B int64 and logp_B float32: the log-prob after temperature, top-k and top-p. A greedy row (temperature
            0) takes the largest logit and reports its log-prob at temperature 1. Where a row's logits hold NaN or
            +inf its logp is NaN and its id means nothing.
        """
        score_BV = logits_BV.float()
        if self.temperature_B1 is not None:
            score_BV = score_BV / self.temperature_B1
        score_BV = score_BV - score_BV.amax(-1, keepdim=True)
        weight_BV = score_BV.exp()
        if self.filtered_F is not None:
            weight_BV[self.filtered_F] = self._nucleus(weight_BV[self.filtered_F])
        cumulative_BV = _cumulative(weight_BV)
        total_B1 = cumulative_BV[:, -1:]
        uniform_B1 = torch.from_numpy(uniforms(self.seed_B, position_B)).to(logits_BV.device)[:, None]
        # Strictly below the total, so that the first entry above the target is one with weight.
        target_B1 = torch.minimum((uniform_B1 * total_B1).long(), total_B1 - 1)
        id_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True)
        if self.greedy_B is not None:
            id_B1 = torch.where(self.greedy_B[:, None], score_BV.argmax(-1, keepdim=True), id_B1)
        id_B1 = id_B1.clamp(max=logits_BV.shape[-1] - 1)  # only a row of NaN gets past the end
        logp_B1 = score_BV.gather(-1, id_B1) - weight_BV.sum(-1, keepdim=True, dtype=torch.float64).log()
        return id_B1[:, 0], logp_B1[:, 0].float()

    def _nucleus(self, weight_FV: Tensor) -> Tensor:
        """Zeroes what top-k and then top-p leave out: the k heaviest ids, and of these the smallest set whose share is
        at least top_p. Equal weights rank by id."""
        sorted_FV, order_FV = weight_FV.sort(dim=-1, descending=True, stable=True)
        rank_V = torch.arange(weight_FV.shape[-1], device=weight_FV.device)
        sorted_FV = sorted_FV.masked_fill((self.top_k_F1 > 0) & (rank_V >= self.top_k_F1), 0.0)
        cumulative_FV = _cumulative(sorted_FV)
        before_FV = cumulative_FV - _fixed(sorted_FV)
        outside_FV = (before_FV >= self.top_p_F1 * cumulative_FV[:, -1:]) & (self.top_p_F1 < 1.0)
        return torch.zeros_like(weight_FV).scatter(-1, order_FV, sorted_FV.masked_fill(outside_FV, 0.0))


def _fixed(weight_BV: Tensor) -> Tensor:
    """Weights in [0, 1] as int64 multiples of 2**-43: room for a vocabulary of a million, and what is lost is less than
    1e-13 of the heaviest id."""
    return (weight_BV * 2.0**43).long()  # a power of two: exact in float32


def _cumulative(weight_BV: Tensor) -> Tensor:
    """Cumulative sums over the vocabulary as integers: exact, so the same in every order of adding. A sum of floats on
    a GPU is not, and torch refuses it under trainer.deterministic."""
    return _fixed(weight_BV).cumsum_(-1)
