"""What a merge writes of a role that trained an adapter: its base with the adapter folded in, or the adapter alone."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from verl_core.checkpoint.huggingface import FOLDER, copy_tokenizer
from verl_core.checkpoint.merge_content import BLOCK_BYTES, Dtype, cast, main_dtype
from verl_core.checkpoint.merge_whole import architecture, write_model_files
from verl_core.checkpoint.safetensors_stream import TensorPlan, file_plan
from verl_core.checkpoint.weights import Weights, blocks
from verl_core.config.errors import UserError
from verl_core.models.adapter_folder import CONFIG, WEIGHTS, module_of, read_config, tensor_name

LEAST_KEPT = 0.01  # of the adapter's change to the weights: with less the merged model is its base


@dataclass(frozen=True)
class TrainedAdapter:
    """An adapter to merge, whole in memory."""

    where: Path
    """Its place, for messages; a tokenizer there, as peft's users save it, is the trained one."""
    config: Mapping[str, Any]
    """peft's adapter_config.json."""
    tensors: Mapping[str, Tensor]
    """By peft's names."""
    huggingface: Path
    """Folder with the tokenizer it was trained with, and config.json where a whole model is to be written."""

    @classmethod
    def read(cls, folder: Path) -> TrainedAdapter:
        """Of a role's folder. Raises UserError."""
        weights = folder / "weights"
        return cls(folder, read_config(weights), load_file(weights / WEIGHTS), folder / FOLDER)


class AdapterAlone:
    """peft's folder: the adapter as it was saved, and the tokenizer it was trained with."""

    def __init__(self, adapter: TrainedAdapter, dtype: Dtype):
        self.adapter = adapter
        self.tensors = [TensorPlan(name, cast(t.dtype, dtype), t.shape) for name, t in adapter.tensors.items()]

    def files(self, max_file_bytes: int) -> dict[str, list[TensorPlan]]:
        return {WEIGHTS: self.tensors}  # peft reads one file

    def blocks(self, tensor: TensorPlan) -> Iterator[Tensor]:
        yield self.adapter.tensors[tensor.name].to(tensor.dtype)

    def finish(self, folder: Path) -> None:
        config = json.dumps(dict(self.adapter.config), indent=2, sort_keys=True)
        (folder / CONFIG).write_text(config + "\n", encoding="utf-8")
        copy_tokenizer(self.adapter.huggingface, folder)
        copy_tokenizer(self.adapter.where, folder)

    def report(self) -> dict[str, Any]:
        return {"lora": "adapter"}


class FoldedModel:
    """The tensors of the base, W + (alpha / r) B A where the adapter has a B and an A.

    Raises UserError for a base that lacks a layer of the adapter, and for an adapter that is still zero; when all has
    been written, where rounding has left nothing of it.

    Args:
        adapter: what was trained.
        weights: of its base.
        names: which of them to write, in order.
        base: where they are, for messages and the report.
        role: see `architecture`.
        dtype: what to write.
        allow_unchanged: take a model that is its base all the same.
    """

    def __init__(
        self,
        adapter: TrainedAdapter,
        weights: Weights,
        names: Collection[str],
        base: Path,
        role: str,
        dtype: Dtype,
        allow_unchanged: bool = False,
    ):
        self.adapter, self.weights, self.base, self.role = adapter, weights, base, role
        self.names = names
        self._allow_unchanged = allow_unchanged
        self.model = architecture(adapter.huggingface, role)
        self.scale = adapter.config["lora_alpha"] / adapter.config["r"]
        self._adapted = {f"{module}.weight": module for module in map(module_of, adapter.tensors)}
        self._got = self._asked = 0.0
        self.tensors = [TensorPlan(name, cast(weights.dtype(name), dtype), weights.shape(name)) for name in names]
        self._check()

    def files(self, max_file_bytes: int) -> dict[str, list[TensorPlan]]:
        return file_plan(self.tensors, max_file_bytes)

    def blocks(self, tensor: TensorPlan) -> Iterator[Tensor]:
        start = 0
        for weight in blocks(self.weights, tensor.name, BLOCK_BYTES):
            if tensor.name in self._adapted:
                a, b = self._parts(tensor.name)
                change = self.scale * b[start : start + len(weight)].float() @ a.float()
                yield self._folded(weight.float(), change, tensor)
                start += len(weight)
            else:
                yield weight.to(tensor.dtype)

    def finish(self, folder: Path) -> None:
        if self.kept < LEAST_KEPT and not self._allow_unchanged:
            raise UserError(
                f"{self.adapter.where}: rounding to {str(main_dtype(self.tensors)).removeprefix('torch.')} leaves "
                f"{self.kept:.2%} of the adapter, so the merged model would be {self.base}",
                "write it with --dtype fp32 or --lora adapter; --allow-unchanged takes it as it is",
            )
        write_model_files(self.adapter.huggingface, folder, self.tensors, self.model, self.role)
        copy_tokenizer(self.adapter.where, folder)

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
        shapes = {tensor.name: tensor.shape for tensor in self.tensors}
        wrong = []
        for name in self._adapted:
            a, b = self._parts(name)
            if shapes.get(name) != torch.Size([len(b), a.shape[1]]):
                there = list(shapes[name]) if name in shapes else "absent"
                wrong.append(f"{name} is {there}, the adapter's is [{len(b)}, {a.shape[1]}]")
        if wrong:
            more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise UserError(
                f"{self.base} is not the model below the adapter of {self.adapter.where}: "
                + "; ".join(wrong[:3])
                + more,
                "bring back the model that the run was started with",
            )
        if not self._allow_unchanged and not any(self._parts(name)[1].any() for name in self._adapted):
            raise UserError(
                f"{self.adapter.where}: the adapter is still zero (no update has reached it), so the merged model "
                f"would be {self.base}",
                "train on, or take the adapter as it is with --lora adapter, or the base with --allow-unchanged",
            )

    def _parts(self, name: str) -> tuple[Tensor, Tensor]:
        module = self._adapted[name]
        return self.adapter.tensors[tensor_name(module, "A")], self.adapter.tensors[tensor_name(module, "B")]
