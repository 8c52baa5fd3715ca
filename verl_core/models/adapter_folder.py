"""peft's folder of a LoRA adapter: `adapter_config.json` and `adapter_model.safetensors`, whose tensors are named
`base_model.model.<module>.lora_A.weight` and `lora_B`. Format: https://huggingface.co/docs/peft/developer_guides/checkpoint

Only plain adapters are read, those that mean W + B A alpha / r.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from verl_core.config.errors import UserError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."

# Fields by which an adapter is another function of the same tensors, or has more of them.
_VARIANTS = (
    "use_dora", "use_rslora", "use_qalora", "use_bdlora", "lora_bias", "fan_in_fan_out", "modules_to_save",
    "rank_pattern", "alpha_pattern", "target_parameters", "layer_replication", "alora_invocation_tokens",
    "trainable_token_indices", "arrow_config", "kasa_config", "monteclora_config", "velora_config",
)  # fmt: skip


class FolderLike(Protocol):
    """A folder whose files can be asked for and read, on a disk or elsewhere."""

    def __truediv__(self, name: str) -> Any: ...


def is_adapter(folder: FolderLike) -> bool:
    """Whether the folder holds an adapter."""
    return (folder / CONFIG).is_file()


def tensor_name(module: str, part: str) -> str:
    """The name of a module's `part` (A or B)."""
    return f"{PREFIX}{module}.lora_{part}.weight"


def module_of(tensor: str) -> str:
    """The module that a tensor of `tensor_name` belongs to, by its name in the model."""
    return tensor.removeprefix(PREFIX).rpartition(".lora_")[0]


def read_config(folder: FolderLike) -> dict[str, Any]:
    """The folder's adapter_config.json. Raises UserError where it cannot be read or is no plain LoRA's."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kind, rank, alpha = config["peft_type"], config["r"], config["lora_alpha"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read: {error}", f"give a folder that holds {CONFIG} and {WEIGHTS}, as peft writes it"
        ) from error
    variants = [name for name in _VARIANTS if config.get(name)]
    if config.get("bias", "none") != "none":
        variants.append("bias")
    if kind != "LORA" or variants or type(rank) is not int or rank < 1 or not isinstance(alpha, int | float):
        what = ", ".join(f"{name}={config[name]!r}" for name in variants) or f"peft_type={kind!r}, r={rank!r}"
        raise UserError(f"{path} is not of a plain LoRA adapter: {what}", "fold it into its base with peft, train that")
    return config
