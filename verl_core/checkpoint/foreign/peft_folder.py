"""The folder that peft writes: `adapter_config.json` and `adapter_model.safetensors`, or the older pickled `.bin`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from verl_core.checkpoint.foreign.peft_names import adapter_config, adapter_name
from verl_core.checkpoint.foreign.source import SourceAdapter, SourceOptions, TensorInfo
from verl_core.checkpoint.foreign.torch_file import StoredTensor, TorchFile
from verl_core.config.errors import UserError
from verl_core.models.adapter_folder import CONFIG, WEIGHTS, is_adapter, read_config

_PICKLED = "adapter_model.bin"


def open_source(folder: Path, options: SourceOptions) -> PeftFolder | None:
    """The adapter in the folder itself."""
    return PeftFolder(folder, options.role) if is_adapter(folder) else None


class PeftFolder:
    """See `ForeignSource`. Raises UserError for an adapter that is no plain LoRA."""

    kind = "peft"
    step: int | None = None
    huggingface: Path | None = None

    def __init__(self, folder: Path, role: str):
        self.folder, self.role = folder, role
        self.tensors: dict[str, TensorInfo] = {}
        self._config = read_config(folder)
        self.base: str | None = self._config.get("base_model_name_or_path") or None

    @cached_property
    def adapter(self) -> SourceAdapter:
        return SourceAdapter(self._config, self._stored)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        raise KeyError(name)  # the adapter alone: `tensors` names none

    def faults(self) -> list[str]:
        if not any((self.folder / name).is_file() for name in (WEIGHTS, _PICKLED)):
            return [f"{WEIGHTS} is missing"]
        try:
            if strange := [name for name in self._stored if adapter_name(name) != name]:
                return [f"{name} is not of a plain LoRA adapter" for name in strange]
            there = adapter_config(self._stored, self._config["lora_alpha"], ())["r"]
        except SafetensorError as error:
            return [f"{WEIGHTS} is cut: {error}"]
        except (UserError, ValueError) as error:
            return [str(error)]
        said = self._config["r"]
        return [] if there == said else [f"{CONFIG} says r={said}, the tensors have {there}"]

    def describe(self) -> str:
        return f"{self.kind} adapter of rank {self._config['r']}"

    @cached_property
    def _stored(self) -> dict[str, Any]:
        if (self.folder / WEIGHTS).is_file():
            return load_file(self.folder / WEIGHTS)
        path = self.folder / _PICKLED
        value = TorchFile(path).value
        if not isinstance(value, dict) or not all(isinstance(tensor, StoredTensor) for tensor in value.values()):
            raise UserError(f"{path} is not a state dict of tensors")
        return {name: tensor.view() for name, tensor in value.items()}
