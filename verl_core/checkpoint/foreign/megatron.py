"""Checkpoints of veRL's Megatron workers, layout 2: `ckpt_contents.json`, which names the form of the weights:
`model/huggingface`, a model's folder as published, or `model/dist_ckpt`, megatron-core's distributed checkpoint
(torch_dist, which is one of torch.distributed.checkpoint)."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verl_core.checkpoint.foreign.dcp_files import METADATA, DcpFiles
from verl_core.checkpoint.foreign.megatron_names import Heads, Part, Unmapped, parts_of
from verl_core.checkpoint.foreign.published_folder import PublishedFolder
from verl_core.checkpoint.foreign.source import ForeignSource, SourceAdapter, SourceOptions, TensorInfo
from verl_core.checkpoint.foreign.verl_tree import role_folder, step_of_role
from verl_core.checkpoint.model_folder import INDEX, SINGLE
from verl_core.config.errors import UserError

CONTENTS = "ckpt_contents.json"
LAYOUT = 2
_KIND = "veRL Megatron"


def open_source(folder: Path, options: SourceOptions) -> ForeignSource | None:
    """The checkpoint in a run's folder (its newest step), in a `global_step_N`, or in a role's own folder. Raises
    UserError for the first layout, and for shards of an adapter."""
    found = role_folder(folder, options.role, _holds_one)
    if found is None:
        return None
    folder, role = found
    if not (folder / CONTENTS).is_file():
        raise UserError(
            f"{folder} is of veRL's first Megatron layout, or its save did not finish: it has no {CONTENTS}",
            "bring it to the second layout with veRL's scripts/migrate_megatron_checkpoint_layout.py",
        )
    contents = _contents(folder)
    form = contents["contents"]["model"]
    if "peft_adapters" in contents["contents"]:
        raise UserError(
            f"{folder} holds an adapter in Megatron's shards, which cannot be read", "export the adapter with veRL"
        )
    published = folder / "model" / "huggingface"
    step = contents.get("global_step", step_of_role(folder))
    if form.get("format") == "huggingface" or any((published / name).is_file() for name in (INDEX, SINGLE)):
        return PublishedFolder(
            folder / form["path"] if form.get("format") == "huggingface" else published, _KIND, role, step
        )
    return MegatronShards(folder, folder / form["path"], role, step, options)


class MegatronShards:
    """See `ForeignSource`. The vocabulary is padded as Megatron left it; a head that is tied is not there."""

    kind = _KIND
    adapter: SourceAdapter | None = None
    base: str | None = None

    def __init__(self, folder: Path, shards: Path, role: str, step: int | None, options: SourceOptions):
        self.folder, self.role, self.step = folder, role, step
        huggingface = folder / "model" / "huggingface"
        self.huggingface = huggingface if (huggingface / "config.json").is_file() else None
        self._told_by = self.huggingface or options.base
        self._shards = shards

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo(
                self._files.tensors[part.key].dtype, torch.Size((sum(n for _, n in part.runs), *part.shape[1:]))
            )
            for name, part in self._parts.items()
        }

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        part, blocks, at = self._parts[name], [], 0
        for first, count in part.runs:
            low, high = max(start - at, 0), min(stop - at, count)
            if low < high:
                blocks.append(self._region(part, first + low, first + high))
            at += count
        return torch.cat(blocks) if blocks else self._region(part, 0, 0)

    def faults(self) -> list[str]:
        if self._told_by is None:
            return [
                "model/huggingface/config.json is missing, which tells the heads of attention (or name --base MODEL)"
            ]
        if not (self._shards / METADATA).is_file():
            return [f"{(self._shards / METADATA).relative_to(self.folder)} is missing"]
        return self._mapped[1] or self._files.faults(list(self._files.tensors))

    def describe(self) -> str:
        return f"{self.kind}, torch_dist"

    @cached_property
    def _files(self) -> DcpFiles:
        return DcpFiles(self._shards)

    @property
    def _parts(self) -> dict[str, Part]:
        return self._mapped[0]

    @cached_property
    def _mapped(self) -> tuple[dict[str, Part], list[str]]:
        """Hugging Face name -> where it is, and what has no place in such a model."""
        assert self._told_by is not None
        heads = Heads.of(json.loads((self._told_by / "config.json").read_text(encoding="utf-8")))
        parts: dict[str, Part] = {}
        unknown = []
        for key, tensor in self._files.tensors.items():
            try:
                for name, part in parts_of(key, tensor.shape, heads):
                    parts[_of_role(name, self.role)] = part
            except Unmapped as error:
                unknown.append(str(error))
        return parts, unknown

    def _region(self, part: Part, start: int, stop: int) -> Tensor:
        ones, zeros = [index + 1 for index in part.lead], [0] * (len(part.shape) - 1)
        whole = self._files.region(part.key, [*part.lead, start, *zeros], [*ones, stop, *part.shape[1:]])
        return whole.reshape(stop - start, *part.shape[1:])


def _of_role(name: str, role: str) -> str:
    return "score.weight" if role == "critic" and name == "lm_head.weight" else name


def _holds_one(folder: Path) -> bool:
    return (folder / CONTENTS).is_file() or (folder / "dist_ckpt").is_dir()


def _contents(folder: Path) -> dict[str, Any]:
    path = folder / CONTENTS
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
        layout, _ = contents["schema_version"], contents["contents"]["model"]["path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} tells no place of a model: {type(error).__name__} {error}", "copy it again") from error
    if layout != LAYOUT:
        raise UserError(f"{path} is of layout {layout}, {LAYOUT} is read", f"save it in layout {LAYOUT}")
    return contents
