"""Whether a merged folder computes what its source does: both are loaded, one after the other."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from verl_core.checkpoint.merge_adapter import FoldedModel, TrainedAdapter
from verl_core.checkpoint.merge_content import BLOCK_BYTES, Content, cast, main_dtype
from verl_core.checkpoint.merge_whole import WholeModel
from verl_core.checkpoint.weights import blocks
from verl_core.config.errors import EnvError, RunError
from verl_core.models.adapter_folder import module_of, tensor_name

TOKENS = 16
_ROUNDING = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far, as a part of the largest logit, W + B A may be from W x + B (A x) by its dtype."""


def require_same_logits(content: Content, folder: Path) -> None:
    """Raises RunError where the logits differ: at all for a whole model, beyond rounding for a folded one. Nothing is
    compared for an adapter alone, which is no model."""
    if not isinstance(content, WholeModel | FoldedModel):
        return
    with _quiet():
        source = _logits(_source(content))
        merged = _logits(type(content.model).from_pretrained(folder, dtype=torch.float32))
    if torch.equal(source.nan_to_num(), merged.nan_to_num()):
        return
    furthest = float((source - merged).abs().max() / source.abs().max())
    bound = _ROUNDING.get(main_dtype(content.tensors), 0.0) if isinstance(content, FoldedModel) else 0.0
    if not furthest <= bound:  # of a NaN too
        raise RunError(
            f"{folder}: the merged model's logits differ from the source's by {furthest:.2g} of the largest",
            "report this with the checkpoint's format and the model's config.json",
        )


def _source(content: WholeModel | FoldedModel) -> PreTrainedModel:
    """The network of the source in float32, not by way of the merged files: its tensors, rounded to the dtype that was
    asked for; of an adapter in layers of its own, and not rounded."""
    weights, state = content.weights, {}
    for name in content.names:
        parts = list(blocks(weights, name, BLOCK_BYTES))
        value = torch.cat(parts) if weights.shape(name) else parts[0]
        state[name] = value.to(cast(value.dtype, content.dtype)) if isinstance(content, WholeModel) else value
    config = copy.deepcopy(content.model.config)
    model = type(content.model).from_pretrained(None, config=config, state_dict=state, dtype=torch.float32)
    return model if isinstance(content, WholeModel) else _with_adapter(model, content.adapter)


@torch.no_grad()
def _with_adapter(model: PreTrainedModel, adapter: TrainedAdapter) -> PreTrainedModel:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise EnvError(f"--verify logits of an adapter needs peft: {error}", "use --verify tensors") from error
    modules = sorted(set(map(module_of, adapter.tensors)))
    config = LoraConfig(r=adapter.config["r"], lora_alpha=adapter.config["lora_alpha"], target_modules=modules)
    inject_adapter_in_model(config, model)
    for module in modules:
        layer = model.get_submodule(module)
        for part in "AB":
            getattr(layer, f"lora_{part}")["default"].weight.copy_(adapter.tensors[tensor_name(module, part)])
    return model


@torch.no_grad()
def _logits(model: PreTrainedModel) -> Tensor:
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the faster ones refuse some sizes
    vocabulary = model.config.get_text_config().vocab_size
    try:
        logits: Tensor = model.eval()(input_ids=torch.arange(TOKENS)[None] % vocabulary).logits
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise EnvError(f"{type(model).__name__} gives no logits here: {error}", "use --verify tensors") from error
    return logits


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own progress bars: rlx has one."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
