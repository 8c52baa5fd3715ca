"""Checkpoints of veRL's FSDP workers: `model_world_size_W_rank_R.pt` of every rank, FSDP1 and FSDP2.

Beside them lie fsdp_config.json (FSDP_version, world_size), huggingface/ (config, tokenizer), of an adapter
lora_train_meta.json (r, lora_alpha, task_type), and extra_state_world_size_W_rank_R.pt (schedule, random states).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from verl_core.checkpoint.foreign.dtensor import DTENSOR
from verl_core.checkpoint.foreign.peft_names import adapter_config, adapter_name, model_name
from verl_core.checkpoint.foreign.rank_files import RankFiles
from verl_core.checkpoint.foreign.restricted_pickle import record
from verl_core.checkpoint.foreign.source import SourceAdapter, SourceOptions, TensorInfo
from verl_core.checkpoint.foreign.torch_file import TorchFile
from verl_core.checkpoint.foreign.verl_tree import role_folder, step_of_role
from verl_core.checkpoint.huggingface import FOLDER
from verl_core.config.errors import UserError

CONFIG = "fsdp_config.json"
_RANK = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_WRAPPERS = ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module.")
_RANDOM_STATES = {
    ("numpy", "ndarray"): record("ndarray"),
    ("numpy", "dtype"): record("dtype"),
    ("numpy._core.multiarray", "_reconstruct"): record("Reconstructed"),
    ("numpy.core.multiarray", "_reconstruct"): record("Reconstructed"),
    ("_codecs", "encode"): record("Encoded"),
}


class VerlFsdp:
    """One role's folder. Reads the pickles of all ranks, and no tensor of the model."""

    kind = "veRL FSDP"
    base = None  # veRL does not tell

    def __init__(self, folder: Path, role: str, options: SourceOptions):
        self.folder, self.role, self._options = folder, role, options
        self.step = step_of_role(folder)
        self.huggingface = huggingface if ((huggingface := folder / FOLDER) / "config.json").is_file() else None
        self._config = _json(folder / CONFIG)
        self._opened: dict[Path, TorchFile] = {}
        self._sizes = {int(match[1]) for path in folder.iterdir() if (match := _RANK.fullmatch(path.name))}

    @property
    def world_size(self) -> int:
        """The number of ranks that wrote it."""
        told = self._config.get("world_size")
        return told if isinstance(told, int) and told > 0 else max(self._sizes, default=0)

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The model's own, by Hugging Face name."""
        return {name: self._files.tensors[key] for name, key in self._keys.items()}

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self._files.rows(self._keys[name], start, stop)

    @cached_property
    def adapter(self) -> SourceAdapter | None:
        parts = {name: key for key in self._files.tensors if (name := adapter_name(_plain(key)))}
        if not parts:
            return None
        tensors = {name: self._files.rows(key, 0, self._files.tensors[key].shape[0]) for name, key in parts.items()}
        meta = _json(self.folder / "lora_train_meta.json")
        alpha = meta.get("lora_alpha") or self._options.lora_alpha
        if not alpha:
            raise UserError(
                f"{self.folder} holds an adapter, and no lora_train_meta.json says its alpha",
                "give the lora_alpha that the run was trained with: --lora-alpha N",
            )
        if self._options.lora_alpha not in (None, alpha):
            raise UserError(
                f"--lora-alpha {self._options.lora_alpha:g}, but {self.folder / 'lora_train_meta.json'} says {alpha}",
                "leave --lora-alpha out",
            )
        try:
            below = str(self._options.base or "")
            config = adapter_config(tensors, alpha, self._keys, meta.get("task_type", "CAUSAL_LM"), below)
        except ValueError as error:
            raise UserError(f"{self.folder}: {error}", "choose another step of the run") from error
        return SourceAdapter(config, tensors)

    def faults(self) -> list[str]:
        if self._sizes - {self.world_size}:
            told = f"{CONFIG} says world size {self.world_size}, " if self._config else ""
            return [f"{told}there are files of world size {', '.join(map(str, sorted(self._sizes)))}"]
        if not self._paths:
            return [f"{CONFIG} says no world size, and there is no model_world_size_W_rank_R.pt"]
        found = [f"{path.name} is missing" for path in self._paths if not path.is_file()]
        for path in filter(Path.is_file, self._paths):
            try:
                self._opened[path] = TorchFile(path, DTENSOR)
            except UserError as error:
                found.append(error.message.replace(f"{path}", path.name))
        return found or self._steps() or self._files.faults

    def describe(self) -> str:
        version = self._config.get("FSDP_version", "")
        return f"{self.kind}{version}, {self.world_size} rank{'s' if self.world_size > 1 else ''}"

    @property
    def _paths(self) -> list[Path]:
        size = self.world_size
        return [self.folder / f"model_world_size_{size}_rank_{rank}.pt" for rank in range(size)]

    @cached_property
    def _files(self) -> RankFiles:
        return RankFiles([self._opened[path] for path in self._paths])

    @cached_property
    def _keys(self) -> dict[str, str]:
        """Hugging Face name -> key in the files, of the model's own tensors."""
        plain = {_plain(key): key for key in self._files.tensors}
        if any(name.startswith("v_head.") for name in plain):  # nothing was trained through the head of the vocabulary
            plain = {name: key for name, key in plain.items() if "lm_head." not in name}
        return {_of_model(name): key for name, key in plain.items() if not adapter_name(name)}

    def _steps(self) -> list[str]:
        """Files of several steps in one folder: their schedules stand elsewhere."""
        stands = {}
        for path in self._paths:
            extra = path.with_name(path.name.replace("model", "extra_state", 1))
            if extra.is_file() and (stand := _schedule_stand(extra)) is not None:
                stands[extra.name] = stand
        if len(set(stands.values())) < 2:
            return []
        return ["its files are of several steps: " + ", ".join(f"{name} of {at}" for name, at in stands.items())]


def open_source(folder: Path, options: SourceOptions) -> VerlFsdp | None:
    """The checkpoint in a run's folder (its newest step), in a `global_step_N`, or in a role's own folder."""
    found = role_folder(folder, options.role, _holds_one)
    return VerlFsdp(*found, options) if found else None


def _holds_one(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    return (folder / CONFIG).is_file() or any(_RANK.fullmatch(path.name) for path in folder.iterdir())


def _json(path: Path) -> dict[str, Any]:
    """What a file says; empty where there is none. Raises UserError for what is no JSON object."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}", "copy it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object", "copy it again")
    return content


def _schedule_stand(path: Path) -> int | None:
    """How many steps the learning rate's schedule has made; None where that is not told."""
    try:
        state = TorchFile(path, _RANDOM_STATES).value["lr_scheduler"]
        return int(state["last_epoch"])
    except (UserError, KeyError, TypeError, ValueError):
        return None  # nothing of it is merged


def _plain(key: str) -> str:
    for wrapper in _WRAPPERS:
        key = key.replace(wrapper, "")
    return key


def _of_model(name: str) -> str:
    """The Hugging Face name; trl's value model (`v_head`) is a token classifier of one label."""
    return model_name(name).removeprefix("pretrained_model.").replace("v_head.summary.", "score.")
