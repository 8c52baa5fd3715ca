"""The weights of a Hugging Face folder, as published models have them: the tensors that transformers would load."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from verl_core.checkpoint.folders import Folder
from verl_core.config.errors import UserError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


class ModelFolder:
    """Opens the files by the folder's index, or its one file. Raises UserError naming those that are missing or cut."""

    def __init__(self, folder: Path):
        self.folder = folder
        by_index = _weight_map(folder)
        opened = _opened(folder, weight_files(folder))
        self._files: dict[str, Any] = {name: opened[file] for name, file in by_index.items()}
        if not by_index:
            self._files = dict.fromkeys(opened[SINGLE].keys(), opened[SINGLE])
        try:
            self._shapes = {name: torch.Size(file.get_slice(name).get_shape()) for name, file in self._files.items()}
        except SafetensorError as error:
            raise UserError(
                f"{folder / INDEX} names tensors that its files lack: {error}", "copy the folder again"
            ) from error

    @property
    def names(self) -> Collection[str]:
        return self._files.keys()

    def shape(self, name: str) -> torch.Size:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        return self.rows(name, 0, 0).dtype

    def complete(self, name: str) -> bool:
        return True

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        if not self._shapes[name]:
            return self._files[name].get_tensor(name)
        return self._files[name].get_slice(name)[start:stop]


def weight_files(folder: Folder) -> set[str]:
    """The names of the files with its weights. Raises UserError naming those that are missing."""
    names = set(_weight_map(folder).values()) or {SINGLE}
    if missing := sorted(name for name in names if not (folder / name).is_file()):
        raise UserError(
            f"{folder} lacks " + ", ".join(missing), "name a folder with the model's weights in safetensors files"
        )
    return names


def _weight_map(folder: Folder) -> dict[str, str]:
    """Name of a tensor -> its file, by the folder's index; none where there is no index, and one file holds all."""
    index = folder / INDEX
    try:
        if not index.is_file():
            return {}
        found: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not all(isinstance(file, str) for file in found.values()):
            raise ValueError("weight_map names no files")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} cannot be read: {error}", "copy the model's folder again") from error
    return found


def _opened(folder: Path, names: set[str]) -> dict[str, Any]:
    opened, cut = {}, []
    for name in sorted(names):
        try:
            opened[name] = safe_open(folder / name, framework="pt")
        except SafetensorError as error:
            cut.append(f"{name} ({error})")
    if cut:
        raise UserError(f"{folder}: cannot be read: " + ", ".join(cut), "copy the model's folder again")
    return opened
