"""The weights of a Hugging Face folder, as published models have them: the tensors that transformers would load."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from verl_core.config.errors import UserError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


class ModelFolder:
    """Opens the files by the folder's index, or its one file. Raises UserError naming those that are missing or cut."""

    def __init__(self, folder: Path):
        self.folder = folder
        index = folder / INDEX
        try:
            if index.is_file():
                weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            else:
                weight_map = {}
            opened = _opened(folder, set(weight_map.values()) or {SINGLE})
        except (ValueError, KeyError, AttributeError) as error:
            raise UserError(f"{index} cannot be read: {error}", "copy the model's folder again") from error
        self._files: dict[str, Any] = {name: opened[file] for name, file in weight_map.items()}
        if not weight_map:
            self._files = dict.fromkeys(opened[SINGLE].keys(), opened[SINGLE])
        try:
            self._shapes = {name: torch.Size(file.get_slice(name).get_shape()) for name, file in self._files.items()}
        except SafetensorError as error:
            raise UserError(f"{index} names tensors that its files lack: {error}", "copy the folder again") from error

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


def _opened(folder: Path, names: set[str]) -> dict[str, Any]:
    if missing := sorted(name for name in names if not (folder / name).is_file()):
        raise UserError(
            f"{folder} lacks " + ", ".join(missing), "name a folder with the model's weights in safetensors files"
        )
    opened, cut = {}, []
    for name in sorted(names):
        try:
            opened[name] = safe_open(folder / name, framework="pt")
        except SafetensorError as error:
            cut.append(f"{name} ({error})")
    if cut:
        raise UserError(f"{folder}: cannot be read: " + ", ".join(cut), "copy the model's folder again")
    return opened
