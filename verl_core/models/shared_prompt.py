"""Packed rows in which answers share their prompt: it stands once in the row, and its keys and values are seen by every
answer of its group.

    row     | prompt A | prompt B | answer A1 | answer A2 | answer B1 | padding |
    keys    | A | B | A A1 | A A2 | B B1 | padding |

Everything but attention is a matter of single tokens and sees the row alone. For attention the keys are laid out anew,
the prompt's in front of each answer's: then each answer is a sequence with more keys than queries whose last query
stands at its last key, as the ragged kernels know it, and windows count an answer's own positions by themselves. Copies
of keys are small (few key heads) where merging two softmaxes by their sums would pass over the outputs of all heads,
and autograd adds up what the answers send back to the one prompt.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from verl_core.models.packing import Attend, Packing, Padding, power_of_two, sent
from verl_core.models.ulysses import Split


class SharedPacking(Packing):
    """A `Packing` whose segments are prompts, then answers. `prompt_of` says which prompt an answer goes on from; -1:
    none (it is a sequence of its own, or padding). There is at least one prompt, and no segment is empty."""

    def __init__(
        self,
        prompt_length: tuple[int, ...],
        answer_length: tuple[int, ...],
        prompt_of: tuple[int, ...],
        device: torch.device,
        split: Split | None = None,
    ):
        super().__init__((*prompt_length, *answer_length), device, split)
        self.prompt_length, self.answer_length, self.prompt_of = prompt_length, answer_length, prompt_of
        self.before = tuple(prompt_length[p] if p >= 0 else 0 for p in prompt_of)
        answer_keys = (b + n for b, n in zip(self.before, answer_length, strict=True))
        self.key_cu_B1, self.longest_keys, self.key_limit = self._offsets((*prompt_length, *answer_keys))
        self.row_of_key_M = sent(self._rows_of_keys(), device)
        self.prompts, self.answers = Padding(prompt_length, device), Padding(answer_length, device)

    def continued(self) -> tuple[Tensor, Tensor]:
        P = len(self.prompt_length)
        goes_on_from = (*range(P), *(p if p >= 0 else P + a for a, p in enumerate(self.prompt_of)))
        return torch.tensor(goes_on_from), torch.tensor((0,) * P + self.before)

    def _rows_of_keys(self) -> Tensor:
        """The row's token in each place of the keys; behind them, up to a power of two (so that compiled layers see few
        lengths), a place behind the row."""
        length_S = torch.tensor(self.length_S)
        start_S = length_S.cumsum(0) - length_S
        from_S, before_S = self.continued()
        starts = torch.stack([start_S[from_S], start_S], 1).flatten()  # of two pieces a segment
        lengths = torch.stack([before_S, length_S], 1).flatten()
        M = int(lengths.sum())
        rows = torch.full((power_of_two(M),), int(length_S.sum()))
        rows[:M] = torch.repeat_interleave(starts - (lengths.cumsum(0) - lengths), lengths) + torch.arange(M)
        return rows

    def keys(self, x_NKD: Tensor) -> Tensor:
        spread: Tensor = _Spread.apply(x_NKD, self.row_of_key_M)
        return spread

    def padded(self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, window: int | None, attend: Attend) -> Tensor:
        """Prompts among themselves, then answers over [prompt, answer], each padded for itself."""
        cut, (place_AU, distance) = sum(self.prompt_length), self._padded_keys
        prompts, answers = self.prompts, self.answers
        out_prompts = prompts.padded(q_NHD[:cut], k_NKD[:cut], v_NKD[:cut], window, attend)
        q = answers.pad(q_NHD[cut:])
        k, v = (_Spread.apply(x, place_AU.flatten()).unflatten(0, place_AU.shape) for x in (k_NKD, v_NKD))
        mask = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        out = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask)
        return torch.cat([out_prompts, answers.unpad(out.transpose(1, 2))])

    @cached_property
    def _padded_keys(self) -> tuple[Tensor, Tensor]:
        """Of the padded keys, a prompt's U - T and an answer's T: the place in the row that each stands for (behind the
        row for padding), [answers, U]; and how far each query stands behind it, negative for what it does not see,
        [answers, 1, T, U]. A padded query sees at least itself, so that its softmax is one."""
        P, T = self.prompts.T, self.answers.T
        length_S = torch.tensor(self.length_S)
        start_S, N = length_S.cumsum(0) - length_S, int(length_S.sum())
        from_S, before_S = self.continued()
        own = slice(len(self.prompt_length), None)
        start, before, length = (x[own, None] for x in (start_S, before_S, length_S))
        prompt_P, answer_T = torch.arange(P), torch.arange(T)
        place_AU = torch.cat(
            [
                torch.where(prompt_P < before, start_S[from_S[own], None] + prompt_P, N),
                torch.where(answer_T < length, start + answer_T, N),
            ],
            1,
        )
        distance_ATU = torch.cat(
            [
                (before[..., None] + answer_T[:, None] - prompt_P).masked_fill((prompt_P >= before)[:, None], -1),
                (answer_T[:, None] - answer_T).expand(len(start), T, T),
            ],
            2,
        )
        return sent(place_AU, self.device), sent(distance_ATU[:, None], self.device)


class _Spread(torch.autograd.Function):
    """Rows to the places that read them, several for a prompt's. The gradients of a row add up in float32, of however
    many answers they are sums; what lies behind the last key has none, whatever a kernel left there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, row_of_place: Tensor) -> Tensor:
        ctx.save_for_backward(row_of_place)
        ctx.rows = len(x)
        return x.index_select(0, row_of_place.clamp(max=len(x) - 1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (row_of_place,) = ctx.saved_tensors
        total = torch.zeros(
            ctx.rows + 1, *grad.shape[1:], dtype=torch.promote_types(grad.dtype, torch.float32), device=grad.device
        )
        return total.index_add_(0, row_of_place, grad.to(total.dtype))[: ctx.rows].to(grad.dtype), None
