"""LoRA (arXiv 2106.09685): in each adapted layer y = W x + (alpha / r) B A x with W frozen, A [r, in] and B [out, r].
peft's layers compute it; the rest of the model is left as transformers made it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from verl_core.config.errors import EnvError, UserError
from verl_core.config.schema import ModelConfig
from verl_core.models.adapter_folder import CONFIG, WEIGHTS, read_config, tensor_name
from verl_core.models.adapter_targets import chosen_layers, shortest_names
from verl_core.models.misfits import misfits

NAME = "default"  # peft's name of the adapter inside the model


class Adapter:
    """The adapter of one model, made by putting it in."""

    def __init__(self, model: PreTrainedModel, settings: ModelConfig, base: str, dtype: torch.dtype, seed: int):
        """Changes `model` in place: its parameters are frozen, the adapter's (of `dtype`, A drawn by `seed`, B zero, or
        both from `settings.lora_adapter_path`) are trained. `base` is what other programs find the model by.

        Raises UserError for targets that match no layer and for an adapter folder that does not fit, EnvError
        without peft.
        """
        try:
            from peft import LoraConfig, inject_adapter_in_model
            from peft.tuners.lora import LoraLayer
        except ImportError as error:
            raise EnvError(f"model.lora_rank={settings.lora_rank} needs peft: {error}", "install peft") from error
        chosen = chosen_layers(model, settings)
        config = LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            target_modules=shortest_names(chosen, model),
            task_type="CAUSAL_LM",
            base_model_name_or_path=base,
        )
        self.config = _as_json(config.to_dict() | {"inference_mode": True})  # as peft writes a finished one
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model, NAME)
        self.layers = {name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)}
        assert list(self.layers) == chosen
        self.scale = settings.lora_alpha / settings.lora_rank
        self.model, self.active = model, True
        for parameter in self.trained().values():
            parameter.data = parameter.data.to(dtype)
        if settings.lora_adapter_path is not None:
            self._read(Path(settings.lora_adapter_path).expanduser(), settings)

    def trained(self) -> dict[str, nn.Parameter]:
        """A and B of each layer under the names of peft's folders."""
        return {
            tensor_name(name, part): getattr(layer, f"lora_{part}")[NAME].weight
            for name, layer in self.layers.items()
            for part in "AB"
        }

    def folded(self, whole: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The model's parameters under their own names as if it had been trained whole: W + (alpha / r) B A, one at a
        time, in W's dtype. `whole` gathers a parameter that is sharded. The others are the live tensors."""
        adapted = {f"{name}.base_layer.weight": layer for name, layer in self.layers.items()}
        trained = {id(p) for p in self.trained().values()}
        for name, parameter in self.model.named_parameters():
            if id(parameter) in trained:
                continue
            value = whole(parameter).detach()
            if name in adapted:
                a, b = (whole(getattr(adapted[name], f"lora_{part}")[NAME].weight).detach() for part in "AB")
                value = fold(value, a, b, self.scale)
            yield name.replace(".base_layer.", "."), value

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within the context the model is its base."""
        # Not by peft's enable_adapters: it changes requires_grad, which FSDP2 reads once, at the first forward.
        self.active = False
        for layer in self.layers.values():
            layer._disable_adapters = True
        try:
            yield
        finally:
            self.active = True
            for layer in self.layers.values():
                layer._disable_adapters = False

    @torch.no_grad()
    def _read(self, folder: Path, settings: ModelConfig) -> None:
        """Takes A and B from an adapter folder."""
        config = read_config(folder)
        for key, ours in (("r", settings.lora_rank), ("lora_alpha", settings.lora_alpha)):
            if config[key] != ours:
                name = "lora_rank" if key == "r" else key
                raise UserError(
                    f"model.lora_adapter_path: {folder / CONFIG} has {key}={config[key]}, model.{name} is {ours}",
                    f"set model.{name}={config[key]}",
                )
        try:
            stored = load_file(folder / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"model.lora_adapter_path: cannot read {folder / WEIGHTS}: {error}", "copy the adapter's folder again"
            ) from error
        own = self.trained()
        if wrong := misfits(own, stored):
            raise UserError(
                f"model.lora_adapter_path: {folder} does not fit: {wrong}",
                f"set model.path and model.target_modules to those in its {CONFIG}",
            )
        for name, parameter in own.items():
            parameter.copy_(stored[name])


def fold(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """weight + scale B A, computed in float32 or better, in the weight's dtype."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return torch.addmm(weight.to(dtype), b.to(dtype), a.to(dtype), alpha=scale).to(weight.dtype)


def base_name(settings: ModelConfig, path: str | Path | None) -> str:
    """By what a model is found again: its name on the hub, else the absolute path of its folder (`path`, None:
    model.path)."""
    if not settings.path.startswith("builtin:") and not Path(settings.path).expanduser().is_dir():
        return settings.path
    return str(Path(path or settings.path).expanduser().absolute())


def _as_json(value: Any) -> Any:
    """A peft configuration's values as JSON has them: sets in order, enumerations as their text."""
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, set):
        return sorted(value)
    return str(getattr(value, "value", value)) if isinstance(value, str) else value
