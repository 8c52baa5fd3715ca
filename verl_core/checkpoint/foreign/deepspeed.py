"""Checkpoints of DeepSpeed with ZeRO: `latest`, and `global_stepN` with the files of every rank.

The weights are the optimizer's, in float32: the model's own are of lower precision, and with stage 3 not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verl_core.checkpoint.foreign.dcp import huggingface_beside
from verl_core.checkpoint.foreign.flat_partitions import (
    FlatTensor,
    Span,
    Vector,
    one_after_the_other,
    split_by_parameter,
)
from verl_core.checkpoint.foreign.prefixes import expected_names, without_prefix
from verl_core.checkpoint.foreign.source import SourceAdapter, SourceOptions, TensorInfo
from verl_core.checkpoint.foreign.zero_files import ZeroFiles, holds_files
from verl_core.config.errors import UserError

_PAD = 2  # with stages 1 and 2 a group is padded to a multiple of this, for every rank


def open_source(folder: Path, options: SourceOptions) -> DeepSpeedSource | None:
    """The checkpoint that `latest` names, or one `global_stepN` folder."""
    if holds_files(folder):
        return DeepSpeedSource(folder, options)
    latest = folder / "latest"
    if not latest.is_file() or not any(holds_files(path) for path in folder.iterdir()):
        return None
    tag = latest.read_text(encoding="utf-8").strip()
    if not tag or not holds_files(folder / tag):
        raise UserError(f"{latest} names {tag!r}, which holds no files of DeepSpeed", "name one of the folders there")
    return DeepSpeedSource(folder / tag, options)


class DeepSpeedSource:
    """See `ForeignSource`. Weights that several modules share are there once, under the name DeepSpeed kept."""

    kind = "DeepSpeed ZeRO"
    adapter: SourceAdapter | None = None
    base: str | None = None

    def __init__(self, folder: Path, options: SourceOptions):
        self.folder, self.role, self._base = folder, options.role, options.base
        self.huggingface = huggingface_beside(folder)
        self._files = ZeroFiles(folder)

    @property
    def step(self) -> int | None:
        step = self._files.model(0).get("global_steps")
        return step if isinstance(step, int) else None

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: TensorInfo(tensor.dtype, tensor.shape) for name, tensor in self._named.items()}

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self._named[name].rows(start, stop)

    def faults(self) -> list[str]:
        try:
            if found := self._files.faults():
                return found
            return self._trained[1] if self._named else ["it holds no parameter"]
        except UserError:
            raise
        except Exception as error:  # files that say nonsense raise any type
            return [f"its files are of a form that is not known: {type(error).__name__} {error}"]

    def describe(self) -> str:
        return f"{self.kind}-{self._files.stage}, {self._files.ranks} ranks"

    @cached_property
    def _named(self) -> dict[str, FlatTensor]:
        expected = expected_names(self.huggingface or self._base, self.role)
        stored = self._trained[0] | self._frozen | self._buffers
        return {name: stored[at] for name, at in without_prefix(stored, expected, str(self.folder)).items()}

    @cached_property
    def _trained(self) -> tuple[dict[str, FlatTensor], list[str]]:
        """The parameters of the optimizer, and which vectors are not as long as these say."""
        files = self._files
        groups = [_shapes(group) for group in files.model(0)["param_shapes"]]
        states = [files.optimizer(rank) for rank in range(files.ranks)]
        if files.stage == 3:
            vectors = [Vector(state["fp32_flat_groups"]) for state in states]
            shapes = {name: shape for group in groups for name, shape in group.items()}
            tensors, used = split_by_parameter(shapes, vectors, torch.float32)
            sizes = {files.optimizer_name(rank): (vector.size, used) for rank, vector in enumerate(vectors)}
            return tensors, _wrong_sizes(sizes)
        tensors, sizes = {}, {}
        for index, shapes in enumerate(groups):
            vector = Vector([state["single_partition_of_fp32_groups"][index] for state in states])
            of_group, used = one_after_the_other(shapes, vector, torch.float32)
            tensors |= of_group
            sizes[f"group {index} of all ranks"] = (vector.size, used + -used % (_PAD * files.ranks))
        return tensors, _wrong_sizes(sizes)

    @cached_property
    def _frozen(self) -> dict[str, FlatTensor]:
        """Parameters that were not trained: with stage 3 a share in each rank's file, else whole in the first."""
        shapes = _shapes(self._files.model(0).get("frozen_param_shapes") or {})
        holders = range(self._files.ranks if self._files.stage == 3 else 1) if shapes else ()
        fragments = [self._files.model(rank)["frozen_param_fragments"] for rank in holders]
        tensors: dict[str, FlatTensor] = {}
        for name, shape in shapes.items():
            vectors = [Vector([of_rank[name]]) for of_rank in fragments]
            tensors |= split_by_parameter({name: shape}, vectors, fragments[0][name].dtype)[0]
        return tensors

    @cached_property
    def _buffers(self) -> dict[str, FlatTensor]:
        model = self._files.model(0)
        stored = {name: model["module"][name] for name in model["buffer_names"] if name in model["module"]}
        return {
            name: FlatTensor(tensor.dtype, tensor.shape, (Span(Vector([tensor]), 0, tensor.shape.numel()),))
            for name, tensor in stored.items()
        }


def _shapes(stored: Mapping[str, Any]) -> dict[str, torch.Size]:
    return {name: torch.Size(shape) for name, shape in stored.items()}


def _wrong_sizes(sizes: Mapping[str, tuple[int, int]]) -> list[str]:
    differing = {name: pair for name, pair in sizes.items() if pair[0] != pair[1]}
    return [f"{name} has {there:,} values, its parameters take {used:,}" for name, (there, used) in differing.items()]
