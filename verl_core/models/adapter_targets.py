"""Which linear layers of a model get an adapter."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from verl_core.config.errors import UserError
from verl_core.config.schema import ModelConfig

ALL = "all-linear"


def chosen_layers(model: PreTrainedModel, settings: ModelConfig) -> list[str]:
    """Names of the linear layers that `settings.target_modules` names and `exclude_modules` does not, in the model's
    order. A target is a whole name or its end: `q_proj`, `mlp.down_proj`, `layers.0.self_attn.q_proj`; an excluded name
    may also stand in the middle: `visual`, `layers.0`. The output layer gets no adapter: it may be the embedding too.

    Raises UserError for a target that no layer answers to, and where none is left.
    """
    output = model.get_output_embeddings()
    linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear) and m is not output]
    targets = settings.target_modules
    targets = [targets] if isinstance(targets, str) else targets
    chosen = set(linear) if ALL in targets else {name for name in linear if _named(name, targets)}
    hint = f"its linear layers are named {', '.join(dict.fromkeys(name.rpartition('.')[2] for name in linear))}"
    for target in targets:
        if target != ALL and not any(_named(name, [target]) for name in linear):
            raise UserError(
                f"model.target_modules: no linear layer below the output layer of {type(model).__name__} is named "
                f"{target!r}",
                hint,
            )
    excluded = settings.exclude_modules or []
    left = [name for name in linear if name in chosen and not any(f".{part}." in f".{name}." for part in excluded)]
    if not left:
        raise UserError(f"model.exclude_modules={excluded} leaves no linear layer of model.target_modules", hint)
    return left


def shortest_names(chosen: list[str], model: nn.Module) -> list[str]:
    """The last parts of the names where these mean the same modules, else the whole names: what adapter_config.json
    lists for programs that match ends."""
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in chosen))
    meant = [name for name, _ in model.named_modules() if _named(name, ends)]
    return ends if meant == chosen else chosen


def _named(name: str, ends: list[str]) -> bool:
    return any(name == end or name.endswith(f".{end}") for end in ends)
