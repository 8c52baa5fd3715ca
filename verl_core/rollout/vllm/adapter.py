"""A LoRA adapter that comes as tensors: what must come, and how a worker takes it into vLLM's own machinery."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

NUMBER, NAME = 1, "adapter"
"""By which every request knows it. They stay the same through all versions, so that rows that run go on with the new
one."""

_TENSOR = re.compile(r"(?P<module>base_model\.model\..+)\.lora_(?P<part>[AB])\.weight")


def checked(stream: Iterable[tuple[str, Tensor]], rank: int) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an adapter under peft's names, each as it comes.

    Raises:
        KeyError: a name is none of an adapter, or, at the end, A came without B or the other way round.
        ValueError: a tensor is not of the adapter's rank: A is [rank, in], B [out, rank].
    """
    parts: dict[str, str] = {}
    for name, tensor in stream:
        if (match := _TENSOR.fullmatch(name)) is None:
            raise KeyError(f"weight {name!r} is no part of an adapter (base_model.model.<layer>.lora_A.weight)")
        module, part = match["module"], match["part"]
        if tensor.dim() != 2 or tensor.shape[0 if part == "A" else 1] != rank:
            raise ValueError(f"weight {name!r} has shape {tuple(tensor.shape)}, the adapter's rank is {rank}")
        parts[module] = parts.get(module, "") + part
        yield name, tensor.detach()
    if halves := sorted(module for module, have in parts.items() if set(have) != {"A", "B"}):
        raise KeyError(f"{len(halves)} of {len(parts)} adapted layers came by half, first {halves[0]!r}")
    if not parts:
        raise KeyError("no tensor of the adapter came")


def take(manager: Any, tensors: dict[str, Tensor], config: Mapping[str, Any]) -> None:
    """Puts the adapter into a worker in place of the one before. Each worker keeps its shard of it.

    Args:
        manager: the worker's vllm.lora.worker_manager.WorkerLoRAManager.
        tensors: by peft's names, in host memory.
        config: r, lora_alpha and target_modules of peft's adapter_config.json.

    Raises:
        ValueError: vLLM would leave out a layer that it cannot adapt.
    """
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    inner = manager._adapter_manager  # WorkerLoRAManager itself reads adapters from folders only
    _refuse_unknown(tensors, inner)
    helper = PEFTHelper.from_dict(dict(config))
    helper.validate_legal(manager.lora_config)
    names = getattr(inner.model, "hf_to_vllm_mapper", None)
    adapter = LoRAModel.from_lora_tensors(
        NUMBER,
        tensors,
        helper,
        device="cpu",
        dtype=manager.lora_config.lora_dtype,
        model_vocab_size=manager.vocab_size,
        weights_mapper=names.get_unstacked_mapper() if names is not None else None,
        skip_prefixes=getattr(inner.model, "lora_skip_prefixes", None),
    )
    inner.remove_adapter(NUMBER)
    inner.add_adapter(adapter)
    inner.activate_adapter(NUMBER)


def _refuse_unknown(tensors: Iterable[str], inner: Any) -> None:
    fused = inner.packed_modules_mapping
    known = {part for module in inner.supported_lora_modules for part in fused.get(module, [module])}
    for name in tensors:
        layer = name.rpartition(".lora_")[0].rpartition(".")[2]
        if layer not in known:
            raise ValueError(f"vllm adapts no layer {layer!r}, only {', '.join(sorted(known))}")
