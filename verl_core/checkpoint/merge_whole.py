"""What a merge writes of a role that was trained whole: the tensors of its checkpoint under the names that published
models have, and the files of a model folder beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification, PreTrainedModel

from verl_core.checkpoint.huggingface import copy_text_files, model_code
from verl_core.checkpoint.merge_content import BLOCK_BYTES, Dtype, cast, main_dtype
from verl_core.checkpoint.published import layout, published
from verl_core.checkpoint.safetensors_stream import TensorPlan, file_plan
from verl_core.checkpoint.weights import Weights, blocks
from verl_core.config.errors import UserError


class WholeModel:
    """The weights of one role. Raises UserError for tensors that are missing, unknown, incomplete or of another shape
    than the architecture's.

    Args:
        weights: by the names that transformers has in memory, or by those of published models where they differ.
        huggingface: folder with config.json and the other files of a model.
        role: see `architecture`.
        dtype: what to write.
        where: the weights' place, for messages.
    """

    def __init__(self, weights: Weights, huggingface: Path, role: str, dtype: Dtype, where: Path):
        self.weights, self.huggingface, self.role, self.dtype = weights, huggingface, role, dtype
        self.model = architecture(huggingface, role)
        self.names = checked_names(weights, self.model, where)
        self.tensors: list[TensorPlan] = []
        self._origin: dict[str, str] = {}  # name of a tensor to write -> the stored one it is made from
        parameters = self.model.state_dict().keys()
        own = {name: weights.shape(name) for name in self.names if name in parameters}
        stacked = layout(self.model, own)
        for stored in self.names:
            to = cast(weights.dtype(stored), dtype)
            parts = stacked.get(stored, {stored: weights.shape(stored)})
            self.tensors += [TensorPlan(name, to, shape) for name, shape in parts.items()]
            self._origin |= dict.fromkeys(parts, stored)
        self._parts = lru_cache(maxsize=1)(self._parts_of)  # the parts of one stored tensor follow each other

    def files(self, max_file_bytes: int) -> dict[str, list[TensorPlan]]:
        return file_plan(self.tensors, max_file_bytes)

    def blocks(self, tensor: TensorPlan) -> Iterator[Tensor]:
        stored = self._origin[tensor.name]
        same = stored == tensor.name and self.weights.shape(stored) == tensor.shape
        values = blocks(self.weights, stored, BLOCK_BYTES) if same else iter([self._parts(stored)[tensor.name]])
        return (value.to(tensor.dtype) for value in values)

    def finish(self, folder: Path) -> None:
        write_model_files(self.huggingface, folder, self.tensors, self.model, self.role)

    def report(self) -> dict[str, Any]:
        return {}

    def _parts_of(self, stored: str) -> dict[str, Tensor]:
        return published(self.model, stored, torch.cat(list(blocks(self.weights, stored, BLOCK_BYTES))))


def architecture(folder: Path, role: str) -> PreTrainedModel:
    """The network the weights belong to, on the meta device: names and shapes without memory."""
    # Code lies in the folder only when the run had model.trust_remote_code, and training ran it.
    trust = bool(model_code(folder))
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust)
        if valued := _has_value_head(role, config.architectures):
            config.num_labels = 1
        auto = AutoModelForTokenClassification if valued else AutoModelForCausalLM
        with torch.device("meta"):
            return auto.from_config(config, trust_remote_code=trust)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot build the model of {folder / 'config.json'}: {reason}") from error


def write_model_files(source: Path, folder: Path, tensors: list[TensorPlan], model: PreTrainedModel, role: str) -> None:
    """Everything of a Hugging Face folder but the weights, as it was when `source` was saved."""
    copy_text_files(source, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _set_dtype(config, str(main_dtype(tensors)).removeprefix("torch."))
    config["architectures"] = [type(model).__name__]
    if _has_value_head(role, config["architectures"]):
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _has_value_head(role: str, architectures: list[str] | None) -> bool:
    """Of a reward model it is its configuration that says so: it may be a language model too."""
    return role == "critic" or any("TokenClassification" in name for name in architectures or [])


def checked_names(weights: Weights, model: PreTrainedModel, where: Path) -> list[str]:
    """Names to write in the model's order, each tie once. Where not a tensor of the model but all published ones that
    hold its values are there, these. Raises UserError for everything that does not fit."""
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    parts = layout(model, expected)
    stored = set(weights.names)
    stored_of_tie = {target: source for target, source in model.all_tied_weights_keys.items() if target in expected}
    problems: list[str] = []
    names: list[str] = []
    known = set(expected)
    for name, shape in expected.items():
        wanted = {name: shape} if name in stored or not parts[name].keys() <= stored else parts[name]
        known |= wanted.keys()
        if name in stored_of_tie and (name not in stored or stored_of_tie[name] in stored):
            if name in stored and not _same(weights, name, stored_of_tie[name]):
                problems.append(f"{name} is tied to {stored_of_tie[name]} in the config, but their values differ")
            continue
        if name in wanted and name not in stored:
            if not any(source == name and target in stored for target, source in stored_of_tie.items()):
                problems.append(f"{name} is missing")
            continue
        for part, size in wanted.items():
            if weights.shape(part) != size:
                problems.append(f"{part} is {list(weights.shape(part))}, the config says {list(size)}")
            elif not weights.complete(part):
                problems.append(f"{part} is incomplete")
            else:
                names.append(part)
    problems += [f"{name} is unknown to {type(model).__name__}" for name in weights.names if name not in known]
    if problems:
        raise UserError(f"{where}: " + "; ".join(problems), "choose another step, or correct huggingface/config.json")
    return names


def _same(weights: Weights, first: str, second: str) -> bool:
    if weights.shape(first) != weights.shape(second):
        return False
    pairs = zip(blocks(weights, first, BLOCK_BYTES), blocks(weights, second, BLOCK_BYTES), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def _set_dtype(config: dict[str, Any], dtype: str) -> None:
    """In the config and in those nested in it (text_config, ...); `torch_dtype` is the older name."""
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    for value in config.values():
        if isinstance(value, dict) and ("dtype" in value or "torch_dtype" in value):
            _set_dtype(value, dtype)
