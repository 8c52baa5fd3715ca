"""State dicts of which every rank saved its own piece: put together from all of them, a block of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from verl_core.checkpoint.foreign.dtensor import Piece, piece_of
from verl_core.checkpoint.foreign.source import TensorInfo
from verl_core.checkpoint.foreign.torch_file import TorchFile


class RankFiles:
    """The files of ranks 0 to W - 1 in order; each holds the tensors by the same keys."""

    def __init__(self, files: Sequence[TorchFile]):
        self._files = files
        self._problems: list[str] = []
        self._ranks = [self._pieces(file) for file in files]

    @cached_property
    def faults(self) -> list[str]:
        """What does not fit together: keys that a rank lacks, shapes that differ, pieces that do not add up."""
        return self._problems or self._meshes() + [fault for key in self._keys for fault in self._faults_of(key)]

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """Whole tensors by key."""
        return {key: TensorInfo(piece.local.dtype, piece.shape) for key, piece in self._ranks[0].items()}

    def rows(self, key: str, start: int, stop: int) -> Tensor:
        """Rows of the whole tensor; views of the files where one rank holds them all."""
        dimension, parts = self._parts[key]
        if dimension is None:
            whole = parts[0].local.view()
            return whole[start:stop] if whole.dim() else whole
        if dimension > 0:
            return torch.cat([part.local.view()[start:stop] for part in parts], dimension)
        edges = pairwise(accumulate((part.local.shape[0] for part in parts), initial=0))
        rows = [
            part.local.view()[max(start - first, 0) : stop - first]
            for part, (first, last) in zip(parts, edges, strict=True)
            if first < stop and start < last
        ]
        if len(rows) == 1:
            return rows[0]
        return torch.cat(rows) if rows else torch.empty((0, *parts[0].shape[1:]), dtype=parts[0].local.dtype)

    def _pieces(self, file: TorchFile) -> dict[str, Piece]:
        pieces: dict[str, Piece] = {}
        if not isinstance(file.value, dict):
            self._problems.append(f"{file.path.name} holds no state dict")
            return pieces
        for key, value in file.value.items():
            try:
                piece = piece_of(value)
            except ValueError as error:
                self._problems.append(f"{file.path.name}: {key} {error}")
                continue
            if piece:
                pieces[str(key)] = piece
        return pieces

    @property
    def _keys(self) -> list[str]:
        return list(dict.fromkeys(key for pieces in self._ranks for key in pieces))

    @cached_property
    def _parts(self) -> dict[str, tuple[int | None, list[Piece]]]:
        """For each key the dimension that is split and the pieces along it, of the first of several copies."""
        return {key: _along([pieces[key] for pieces in self._ranks]) for key in self._ranks[0]}

    def _meshes(self) -> list[str]:
        """Ranks that were written by another number of processes, or that have another's place."""
        found = []
        placed = [{piece.coordinate for piece in pieces.values() if piece.coordinate} for pieces in self._ranks]
        for file, own in zip(self._files, placed, strict=True):
            if len(own) > 1:
                found.append(f"{file.path.name} has tensors of several device meshes, {sorted(own)}")
        places = [place for own in placed for place in own]
        if found or not places:
            return found
        sizes = [max(along) + 1 for along in zip(*places, strict=False)]
        if len(set(places)) != len(self._ranks) or math.prod(sizes) != len(self._ranks):
            found.append(
                f"the files are not of the {len(self._ranks)} ranks of one run: their places in the device mesh are "
                f"{places}"
            )
        return found

    def _faults_of(self, key: str) -> list[str]:
        lacking = [file.path.name for file, pieces in zip(self._files, self._ranks, strict=True) if key not in pieces]
        if lacking:
            return [f"{key} is missing in {', '.join(lacking)}"]
        pieces = [pieces[key] for pieces in self._ranks]
        if len({(piece.shape, piece.local.dtype, piece.sharded) for piece in pieces}) > 1:
            return [f"{key} has another shape, dtype or sharding in each file"]
        first, *others = (piece.local for piece in pieces)
        if not pieces[0].coordinate and not all(torch.equal(first.view(), other.view()) for other in others):
            return [f"{key} is not sharded, yet differs between the files"]
        if sum(dimension is not None for dimension in pieces[0].sharded) > 1:
            return [f"{key} is sharded over two dimensions of its device mesh"]
        dimension, parts = _along(pieces)
        want = list(pieces[0].shape)
        got = list(parts[0].local.shape)
        if dimension is not None and len(got) == len(want):
            got[dimension] = sum(part.local.shape[dimension] for part in parts)
        return [] if got == want else [f"the pieces of {key} make {got}, not {want}"]


def _along(pieces: list[Piece]) -> tuple[int | None, list[Piece]]:
    """The dimension that is split, and its pieces in order; None and one piece where every rank has it whole."""
    split = next((at for at, dimension in enumerate(pieces[0].sharded) if dimension is not None), None)
    if split is None:
        return None, pieces[:1]
    first_copy = [p for p in pieces if not any(at for i, at in enumerate(p.coordinate) if i != split)]
    return pieces[0].sharded[split], sorted(first_copy, key=lambda piece: piece.coordinate[split])
