"""The ragged batch: flat columns plus lengths. A column's name ends in its axis, so selecting, joining, packing and
sending treat every column alike and a new need is only a new column.

Axes: `_N` one entry a token (all sequences one after the other), `_S` one a sequence, `_P` one a prompt (the index
space of group_S), `_blob` a Python list with one object a sequence. Further dimensions may follow the first, each with
a letter of its own or without: `_NK`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


def axis_of(name: str) -> str:
    """N, S, P or blob, from a column's name. Raises ValueError for any other ending."""
    ending = name.rsplit("_", 1)[-1]
    axis = ending[:1] if ending.isalpha() and ending.isupper() else ending
    if axis not in ("N", "S", "P", "blob"):
        raise ValueError(f"column {name!r} does not end in its axis (_N, _S, _P or _blob)")
    return axis


class Batch:
    """S sequences with N tokens in all. `batch["ids_N"]` reads a column, `batch.add(values_N=...)` writes one.

    `length_S` and `group_S` never change: what follows from them is computed once, on first use.
    """

    def __init__(self, length_S: Tensor, group_S: Tensor, columns: Mapping[str, Any]):
        if len(length_S) != len(group_S):
            raise ValueError(f"{len(length_S)} lengths but {len(group_S)} group ids")
        self.length_S = length_S.to(torch.int64)
        self.group_S = group_S.to(torch.int64)
        self.columns: dict[str, Any] = {}
        self.add(**columns)

    def __reduce__(self):  # what was computed on first use is not sent to other processes
        return (type(self), (self.length_S, self.group_S, self.columns))

    @property
    def S(self) -> int:
        return len(self.length_S)

    @cached_property
    def N(self) -> int:
        return int(self.length_S.sum())

    @cached_property
    def P(self) -> int:
        return int(self.group_S.max()) + 1 if self.S else 0

    @cached_property
    def cu_seqlens_S1(self) -> Tensor:
        """Offsets: sequence s is tokens cu[s]:cu[s+1]. Shape [S+1], int64."""
        return torch.nn.functional.pad(self.length_S.cumsum(0), (1, 0))

    @cached_property
    def seq_N(self) -> Tensor:
        """Index of the sequence each token belongs to. Shape [N]."""
        index_S = torch.arange(self.S, device=self.length_S.device)
        return torch.repeat_interleave(index_S, self.length_S, output_size=self.N)

    @cached_property
    def position_N(self) -> Tensor:
        """Position of each token in its sequence, from 0. Shape [N]."""
        return torch.arange(self.N, device=self.length_S.device) - self.cu_seqlens_S1[self.seq_N]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Any:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; the batch has {sorted(self.columns)}")
        return self.columns[name]

    def add(self, **columns: Any) -> Batch:
        """Sets columns in place and returns self. Raises ValueError when a length does not fit its axis."""
        for name, value in columns.items():
            want = {"N": self.N, "S": self.S, "P": self.P, "blob": self.S}[axis_of(name)]
            if len(value) != want:
                raise ValueError(f"column {name} has {len(value)} entries, its axis has {want}")
            self.columns[name] = value
        return self

    def drop(self, *names: str) -> Batch:
        """A batch without these columns (absent ones are ignored); tensors are shared."""
        return Batch(self.length_S, self.group_S, {k: v for k, v in self.columns.items() if k not in names})

    def token_index(self, index_S: Tensor) -> Tensor:
        """Positions on the N axis of the tokens of these sequences, in that order."""
        cu = self.cu_seqlens_S1
        length = self.length_S[index_S]
        start = torch.repeat_interleave(cu[:-1][index_S], length)
        offset = torch.nn.functional.pad(length.cumsum(0), (1, 0))[:-1]
        return start + torch.arange(int(length.sum()), device=start.device) - torch.repeat_interleave(offset, length)

    def select(self, index_S: Tensor | Sequence[int]) -> Batch:
        """The batch of these sequences (indices, or a bool mask) in this order; group ids are renumbered from 0 in
        order of their old number."""
        index_S = torch.as_tensor(index_S, device=self.length_S.device)
        index_S = index_S.nonzero()[:, 0] if index_S.dtype == torch.bool else index_S.to(torch.int64)
        kept_P, group_S = torch.unique(self.group_S[index_S], return_inverse=True)
        index_N = self.token_index(index_S)
        pick = {
            "N": lambda v: v[index_N],
            "S": lambda v: v[index_S],
            "P": lambda v: v[kept_P],
            "blob": lambda v: [v[i] for i in index_S.tolist()],
        }
        return Batch(self.length_S[index_S], group_S, {k: pick[axis_of(k)](v) for k, v in self.columns.items()})

    def to(self, device: torch.device | str) -> Batch:
        """The batch on another device; blobs stay where they are."""
        kind = torch.device(device).type

        def moved(v: Any) -> Any:
            if not isinstance(v, Tensor):
                return v
            if kind == "cuda" and not v.is_cuda:  # from pageable memory the host would wait for the device
                v = v.pin_memory()
            return v.to(device, non_blocking=kind != "cpu")  # a copy to the host must end before anybody reads it

        return Batch(moved(self.length_S), moved(self.group_S), {k: moved(v) for k, v in self.columns.items()})

    def padded(self, column: str | Tensor, fill: float = 0) -> Tensor:
        """A token column as a dense [S, T] tensor (T = the longest sequence), `fill` where a sequence has ended."""
        value_N = self[column] if isinstance(column, str) else column
        longest = int(self.length_S.max()) if self.S else 0
        out = value_N.new_full((self.S, longest, *value_N.shape[1:]), fill)
        out[self.seq_N, self.position_N] = value_N
        return out

    def ragged(self, dense_ST: Tensor) -> Tensor:
        """The inverse of `padded`: the [N] column of a dense [S, T] tensor."""
        return dense_ST[self.seq_N, self.position_N]

    def sum_S(self, value_N: Tensor) -> Tensor:
        """Sum of a token column over each sequence; counts a bool column. Shape [S]."""
        if value_N.dtype == torch.bool:
            value_N = value_N.long()
        out = torch.zeros(self.S, dtype=value_N.dtype, device=value_N.device)
        return out.index_add(0, self.seq_N, value_N)


def concat(batches: Iterable[Batch]) -> Batch:
    """Batches one after the other; their groups stay apart. Raises ValueError when there is none or when their columns
    differ."""
    parts = list(batches)
    if not parts:
        raise ValueError("no batch to join")
    names = set(parts[0].columns)
    if any(set(b.columns) != names for b in parts):
        raise ValueError(f"batches to join have different columns: {[sorted(b.columns) for b in parts]}")
    shift, groups = 0, []
    for b in parts:
        groups.append(b.group_S + shift)
        shift += b.P
    join = lambda k: (  # noqa: E731
        [x for b in parts for x in b[k]] if axis_of(k) == "blob" else torch.cat([b[k] for b in parts])
    )
    return Batch(torch.cat([b.length_S for b in parts]), torch.cat(groups), {k: join(k) for k in sorted(names)})
