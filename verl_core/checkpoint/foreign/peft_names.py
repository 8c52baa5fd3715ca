"""The names that peft gives to the tensors of a model it has wrapped, and the adapter among them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from verl_core.models.adapter_folder import PREFIX, module_of, tensor_name

_PART = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.weight")


def model_name(key: str) -> str:
    """The name of a model's own tensor: `base_model.model.lm.q_proj.base_layer.weight` is `lm.q_proj.weight`."""
    return key.removeprefix(PREFIX).replace(".base_layer.", ".")


def adapter_name(key: str) -> str | None:
    """The name that an adapter's tensor has in peft's own file; None for a tensor of the model."""
    match = _PART.fullmatch(key.removeprefix(PREFIX))
    return tensor_name(match["module"], match["part"]) if match else None


def adapter_config(
    tensors: Mapping[str, Tensor], alpha: float, model: Iterable[str], task_type: str = "CAUSAL_LM", base: str = ""
) -> dict[str, Any]:
    """The adapter_config.json that these tensors need.

    Args:
        tensors: of the adapter, by peft's names.
        alpha: its lora_alpha.
        model: names of the model's own tensors, to tell whether the last part of a module's name is enough.
        task_type: as peft calls it.
        base: folder or hub name of the model below.

    Raises ValueError when its modules have several ranks, or when a module lacks its A or its B.
    """
    modules = sorted({module_of(name) for name in tensors})
    lacking = [
        tensor_name(module, part) for module in modules for part in "AB" if tensor_name(module, part) not in tensors
    ]
    if lacking:
        raise ValueError(f"of the adapter {', '.join(lacking)} is missing")
    ranks = {len(tensors[tensor_name(module, "A")]) for module in modules}
    if len(ranks) != 1:
        raise ValueError(f"the adapter has modules of ranks {', '.join(map(str, sorted(ranks)))}")
    short = sorted({module.rpartition(".")[2] for module in modules})
    others = {name.removesuffix(".weight") for name in model if name.endswith(".weight")} - set(modules)
    ambiguous = any(name.rpartition(".")[2] in short for name in others)
    return {
        "peft_type": "LORA",
        "task_type": task_type,
        "base_model_name_or_path": base,
        "r": ranks.pop(),
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules if ambiguous else short,
        "inference_mode": True,
    }
