"""Where sequences lie in a packed row, and the padded layout [S, T] in which attention without a ragged kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from verl_core.models import cudnn_ragged, flash3
from verl_core.models.ulysses import Split

type Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Attention of q [S, H, T, D] over k, v [S, K, U, D]. The mask is True where a query sees a key and broadcasts to
[S, 1, T, U]; None: T = U, causal."""


class Sight(NamedTuple):
    """What a token of the row sees: the tokens of its own segment and of the one that this goes on from, up to its own
    position. Each [N], on the row's device."""

    segment_N: Tensor
    goes_on_from_N: Tensor
    position_N: Tensor


class Padding:
    """Sequences one after the other on an axis N, and each for itself in a row of [S, T]."""

    def __init__(self, length_S: tuple[int, ...], device: torch.device):
        self.length_S, self.device = length_S, device

    @property
    def S(self) -> int:
        return len(self.length_S)

    @cached_property
    def T(self) -> int:
        """The longest sequence."""
        return max(self.length_S)

    @cached_property
    def slot_N(self) -> Tensor | None:
        """Row-major place of each token in the padded [S, T] layout; None when all lengths are equal (no padding)."""
        if min(self.length_S) == self.T:
            return None
        present_ST = torch.arange(self.T)[None] < torch.tensor(self.length_S)[:, None]
        return present_ST.flatten().nonzero()[:, 0].to(self.device)

    def pad(self, x_ND: Tensor) -> Tensor:
        """[N, ...] to [S, T, ...], zeros behind each sequence; differentiable."""
        if self.slot_N is not None:
            x_ND = _Scatter.apply(x_ND, self.slot_N, self.S * self.T)
        return x_ND.unflatten(0, (self.S, self.T))

    def unpad(self, x_STD: Tensor) -> Tensor:
        """The inverse of `pad`."""
        flat = x_STD.flatten(0, 1)
        return flat if self.slot_N is None else _Gather.apply(flat, self.slot_N)

    def padded(self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, window: int | None, attend: Attend) -> Tensor:
        """Attention by way of the padded layout; [N, H, D]. Padding lies behind each sequence, where causal attention
        cannot see it, so no padding mask is needed."""
        q, k, v = (self.pad(x).transpose(1, 2) for x in (q_NHD, k_NKD, v_NKD))  # [S, H, T, D]
        return self.unpad(attend(q, k, v, self._window_mask(window)).transpose(1, 2))

    def _window_mask(self, window: int | None) -> Tensor | None:
        """[T, T]; None when the window is at least as long as every sequence."""
        if window is None or window >= self.T:
            return None
        position = torch.arange(self.T, device=self.device)
        distance_TT = position[:, None] - position[None]
        return (distance_TT >= 0) & (distance_TT < window)


class Packing(Padding):
    """Where the sequences lie in a packed row. Made once a micro-batch, shared by all layers. (FSDP2 would take a
    dataclass apart and make it anew for every layer.)

    cu_B1: offsets of the sequences and, at the end, of empty ones, int32 on the device; longest: not less than the
    longest sequence; limit: the same as a tensor in host memory, of which compiled layers make no constant. What
    kernels read is rounded up to powers of two, so that their plans see few different shapes; `least` raises it
    further, to the sequences and the longest one of other rows. cudnn: whether cuDNN's kernel is there. split: this
    rank's part where ranks split the row. key_cu_B1, longest_keys, key_limit: the same of the keys that the sequences
    see, as `keys` lays them out.
    """

    def __init__(
        self,
        length_S: tuple[int, ...],
        device: torch.device,
        split: Split | None = None,
        least: tuple[int, int] = (0, 0),
    ):
        super().__init__(length_S, device)
        self.split, self._least = split, least
        self.cu_B1, self.longest, self.limit = self._offsets(length_S)
        self.key_cu_B1, self.longest_keys, self.key_limit = self.cu_B1, self.longest, self.limit
        self.cudnn = cudnn_ragged.usable(device)
        flash3.activate(device)
        self.block_masks: dict[int | None, Any] = {}  # of `flex`, by window

    def _offsets(self, length_S: tuple[int, ...]) -> tuple[Tensor, int, Tensor]:
        least_S, least_T = self._least
        count = max(8, power_of_two(max(self.S, least_S)))
        lengths = torch.tensor(length_S + (0,) * (count - self.S), dtype=torch.int32)
        offsets = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        longest = max(128, power_of_two(max(*length_S, least_T)))
        return sent(offsets, self.device), longest, torch.tensor(longest)

    def keys(self, x_NKD: Tensor) -> Tensor:
        """Keys or values of the row as the ragged kernels read them."""
        return x_NKD

    def continued(self) -> tuple[Tensor, Tensor]:
        """The segment that each one goes on from (itself: none), and the position at which it starts. Shapes [S]."""
        return torch.arange(self.S), torch.zeros(self.S, dtype=torch.int64)

    @cached_property
    def sight(self) -> Sight:
        from_S, start_S = self.continued()
        length_S = torch.tensor(self.length_S)
        segment_N = torch.repeat_interleave(torch.arange(self.S), length_S)
        place_N = torch.arange(len(segment_N)) - (length_S.cumsum(0) - length_S)[segment_N]
        columns = segment_N, from_S[segment_N], place_N + start_S[segment_N]
        return Sight(*(sent(x, self.device) for x in columns))


class _Scatter(torch.autograd.Function):
    """Rows to distinct places. Own function because autograd's gradient of a gather adds atomically (slow, and not
    deterministic on a GPU), which distinct places do not need."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slot: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(slot)
        # not in place: torch 2.11 compiles a wrong gradient for a function that writes in place here
        return x.new_zeros(rows, *x.shape[1:]).index_copy(0, slot, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (slot,) = ctx.saved_tensors
        return grad.index_select(0, slot), None, None


class _Gather(torch.autograd.Function):
    """Rows from distinct places; see `_Scatter`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slot: Tensor) -> Tensor:
        ctx.save_for_backward(slot)
        ctx.rows = x.shape[0]
        return x.index_select(0, slot)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (slot,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, *grad.shape[1:]).index_copy_(0, slot, grad), None


def power_of_two(n: int) -> int:
    """The smallest that is not less."""
    return 1 << (n - 1).bit_length()


def sent(x: Tensor, device: torch.device) -> Tensor:
    """On the device, without the host waiting for what the device still does (which pageable memory would ask for)."""
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)
