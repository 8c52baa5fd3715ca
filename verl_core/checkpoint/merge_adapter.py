"""What a merge writes of a role that trained an adapter: its base with the adapter folded in, or the adapter alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from verl_core.checkpoint.huggingface import FOLDER, copy_tokenizer
from verl_core.checkpoint.merge_content import BLOCK_BYTES, Dtype, cast, main_dtype
from verl_core.checkpoint.merge_whole import architecture, write_model_files
from verl_core.checkpoint.safetensors_stream import TensorPlan, file_plan
from verl_core.config.errors import UserError
from verl_core.models.adapter_folder import CONFIG, WEIGHTS, module_of, read_config, tensor_name

LEAST_KEPT = 0.01  # of the adapter's change to the weights: with less the merged model is its base


class AdapterAlone:
    """peft's folder: the adapter as it was saved, and the tokenizer it was trained with."""

    def __init__(self, folder: Path, dtype: Dtype):
        self.folder = folder
        self._stored = load_file(folder / "weights" / WEIGHTS)
        self.tensors = [TensorPlan(name, cast(t.dtype, dtype), t.shape) for name, t in self._stored.items()]

    def files(self, max_file_bytes: int) -> dict[str, list[TensorPlan]]:
        return {WEIGHTS: self.tensors}  # peft reads one file

    def blocks(self, tensor: TensorPlan) -> Iterator[Tensor]:
        yield self._stored[tensor.name].to(tensor.dtype)

    def finish(self, folder: Path) -> None:
        shutil.copyfile(self.folder / "weights" / CONFIG, folder / CONFIG)
        copy_tokenizer(self.folder / FOLDER, folder)

    def report(self) -> dict[str, Any]:
        return {"lora": "adapter"}


class FoldedModel:
    """The tensors of the base's own files, W + (alpha / r) B A where the adapter has a B and an A.

    Raises UserError for a base that lacks a layer of the adapter, and for an adapter that is still zero; when all has
    been written, where rounding has left nothing of it.
    """

    def __init__(self, folder: Path, base: Path, role: str, dtype: Dtype):
        self.folder, self.base, self.role = folder, base, role
        self.model = architecture(folder / FOLDER, role)
        config = read_config(folder / "weights")
        self._scale = config["lora_alpha"] / config["r"]
        self._stored = load_file(folder / "weights" / WEIGHTS)
        self._adapted = {f"{module}.weight": module for module in map(module_of, self._stored)}
        self._got = self._asked = 0.0
        self.tensors = [
            TensorPlan(name, cast(self._rows(name, 0, 0).dtype, dtype), shape) for name, shape in self._shapes.items()
        ]
        self._check()

    def files(self, max_file_bytes: int) -> dict[str, list[TensorPlan]]:
        return file_plan(self.tensors, max_file_bytes)

    def blocks(self, tensor: TensorPlan) -> Iterator[Tensor]:
        if not tensor.shape:
            yield self._rows(tensor.name, 0, 0).to(tensor.dtype)
            return
        row_bytes = tensor.shape[1:].numel() * tensor.dtype.itemsize
        rows = max(1, BLOCK_BYTES // max(1, row_bytes))
        for start in range(0, tensor.shape[0], rows):
            weight = self._rows(tensor.name, start, start + rows)
            if tensor.name in self._adapted:
                a, b = self._parts(tensor.name)
                yield self._folded(weight.float(), self._scale * b[start : start + rows].float() @ a.float(), tensor)
            else:
                yield weight.to(tensor.dtype)

    def finish(self, folder: Path) -> None:
        if self.kept < LEAST_KEPT:
            raise UserError(
                f"{self.folder}: rounding to {str(main_dtype(self.tensors)).removeprefix('torch.')} leaves "
                f"{self.kept:.2%} of the adapter, so the merged model would be {self.base}",
                "write it with --dtype fp32, or --lora adapter",
            )
        write_model_files(self.folder / FOLDER, folder, self.tensors, self.model, self.role)

    def report(self) -> dict[str, Any]:
        kept = {"kept": round(self.kept, 4)} if self._asked else {}
        return {"lora": "fold", "base": str(self.base), **kept}

    @property
    def kept(self) -> float:
        """How much of the change to the weights written so far survived rounding: its component along what the adapter
        asked for. A change of less than half a step of the dtype is lost whole."""
        return self._got / self._asked if self._asked else 0.0

    def _folded(self, weight: Tensor, change: Tensor, tensor: TensorPlan) -> Tensor:
        folded = (weight + change).to(tensor.dtype)
        asked = change.double()
        self._got += float(((folded.double() - weight.double()) * asked).sum())
        self._asked += float(asked.square().sum())
        return folded

    def _check(self) -> None:
        wrong = []
        for name in self._adapted:
            a, b = self._parts(name)
            if self._shapes.get(name) != torch.Size([len(b), a.shape[1]]):
                there = list(self._shapes[name]) if name in self._shapes else "absent"
                wrong.append(f"{name} is {there}, the adapter's is [{len(b)}, {a.shape[1]}]")
        if wrong:
            more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise UserError(
                f"{self.base} is not the model below the adapter of {self.folder}: " + "; ".join(wrong[:3]) + more,
                "bring back the model that the run was started with",
            )
        if not any(self._parts(name)[1].any() for name in self._adapted):
            raise UserError(
                f"{self.folder}: the adapter is still zero (no update has reached it), so the merged model would be "
                f"{self.base}",
                "train on, or take the adapter as it is with --lora adapter",
            )

    def _parts(self, name: str) -> tuple[Tensor, Tensor]:
        module = self._adapted[name]
        return self._stored[tensor_name(module, "A")], self._stored[tensor_name(module, "B")]

    @cached_property
    def _files(self) -> dict[str, Any]:
        """Tensor name -> its open file: those that transformers would load, where the folder holds others too."""
        index = self.base / "model.safetensors.index.json"
        if index.is_file():
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            opened = {file: safe_open(self.base / file, framework="pt") for file in set(weight_map.values())}
            return {name: opened[file] for name, file in weight_map.items()}
        file = safe_open(self.base / "model.safetensors", framework="pt")
        return dict.fromkeys(file.keys(), file)

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        return {name: torch.Size(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def _rows(self, name: str, start: int, stop: int) -> Tensor:
        """Of the base's tensor; a scalar is whole."""
        if not self._shapes[name]:
            return self._files[name].get_tensor(name)
        return self._files[name].get_slice(name)[start:stop]
