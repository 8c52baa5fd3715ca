"""An adapter in a checkpoint: `<role>/weights` is a folder that peft loads, and that `load_role` reads like the shards
of a whole model. The base is not in it: adapter_config.json names where it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor
from torch.distributed.tensor import DTensor

from verl_core.checkpoint.folders import Folder
from verl_core.config.errors import UserError
from verl_core.config.schema import ModelConfig
from verl_core.models.adapter_folder import CONFIG, WEIGHTS, is_adapter, read_config
from verl_core.models.pretrained import resolve

WARMED_UP = "warmup"  # the folder of a run that holds its builtin model


def gathered(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Copies of the whole tensors in host memory; called on all ranks, of which those with `keep` get them."""
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        value = tensor.detach()
        value = value.full_tensor() if isinstance(value, DTensor) else value
        if keep:
            whole[name] = value.to("cpu", copy=True).contiguous()
    return whole


def write_adapter(folder: Path, config: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes peft's two files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS).write_bytes(save(tensors, metadata={"format": "pt"}))
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def check_adapter(folder: Folder, own: Mapping[str, Any] | None) -> None:
    """Raises UserError where the weights in `folder` are not of the kind that is to take them: an adapter with the rank
    and alpha of `own`, or (None) a whole model."""
    saved = read_config(folder) if is_adapter(folder) else None
    if own is None and saved is None:
        return
    for key, setting in (("r", "lora_rank"), ("lora_alpha", "lora_alpha")):
        there = saved[key] if saved else 0
        here = own[key] if own else 0
        if there != here:
            what = f"an adapter with {key}={there}" if saved else "a whole model"
            takes = f"an adapter with {key}={here}" if own else "a whole model"
            raise UserError(
                f"{folder} holds {what}, what is to take it is {takes}",
                f"resume with model.{setting}={there}, as the run was started",
            )


def settings_of(folder: Path, model: ModelConfig) -> ModelConfig:
    """`model` with the adapter of a checkpoint's `weights` folder, or with none where that is a whole model."""
    if not is_adapter(folder):
        return replace(model, lora_rank=0, lora_adapter_path=None)
    config = read_config(folder)
    return replace(
        model,
        lora_rank=config["r"],
        lora_alpha=config["lora_alpha"],
        target_modules=list(config["target_modules"]),
        exclude_modules=None,
        lora_adapter_path=None,
    )


def base_folder(checkpoint: Path, role: str) -> Path:
    """The Hugging Face folder of the model that a role's adapter was trained on. A builtin model moves with its run.

    Raises UserError or EnvError, naming it, where it cannot be found.
    """
    config = read_config(checkpoint / role / "weights")
    name = str(config.get("base_model_name_or_path"))
    moved = checkpoint.absolute().parents[1] / WARMED_UP
    if Path(name).name == WARMED_UP and not Path(name).is_dir() and moved.is_dir():
        name = str(moved)
    if Path(name).is_absolute() and not Path(name).is_dir():
        raise UserError(
            f"the model below the adapter of {checkpoint} is not at {name} any more",
            "bring it back there; a link will do",
        )
    return resolve(name)
