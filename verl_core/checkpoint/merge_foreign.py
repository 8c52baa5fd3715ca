"""What a merge writes of a checkpoint that another program wrote."""

from __future__ import annotations

from pathlib import Path

from verl_core.checkpoint.foreign.source import ForeignSource
from verl_core.checkpoint.foreign.source_weights import SourceWeights
from verl_core.checkpoint.merge_adapter import AdapterAlone, FoldedModel, TrainedAdapter
from verl_core.checkpoint.merge_content import Content, Dtype
from verl_core.checkpoint.merge_whole import WholeModel, architecture, checked_names
from verl_core.checkpoint.model_folder import ModelFolder
from verl_core.config.errors import UserError
from verl_core.models.pretrained import resolve


def foreign_content(
    source: ForeignSource, dtype: Dtype, lora: str, base: Path | None, allow_unchanged: bool = False
) -> Content:
    """Of a source without faults. `base` is the folder that a user names: of the model below an adapter, and of config
    and tokenizer where the source has none.

    Raises UserError for what does not fit the architecture, and for a base or config that nobody names.
    """
    adapter = source.adapter
    if adapter is None:
        if lora == "adapter":
            raise UserError(f"{source.folder} holds a whole model and no adapter", "leave --lora out")
        huggingface = _huggingface(source, base)
        weights = SourceWeights(source, architecture(huggingface, source.role))
        return WholeModel(weights, huggingface, source.role, dtype, source.folder)
    trained = TrainedAdapter(source.folder, adapter.config, adapter.tensors, _huggingface(source, base))
    if lora == "adapter":
        return AdapterAlone(trained, dtype)
    if source.tensors:
        model = architecture(trained.huggingface, source.role)
        weights = SourceWeights(source, model)
        names = checked_names(weights, model, source.folder)
        return FoldedModel(trained, weights, names, source.folder, source.role, dtype, allow_unchanged)
    below = _base(source, base)
    folder = ModelFolder(below)
    return FoldedModel(trained, folder, folder.names, below, source.role, dtype, allow_unchanged)


def _huggingface(source: ForeignSource, base: Path | None) -> Path:
    return source.huggingface or _base(source, base)


def _base(source: ForeignSource, base: Path | None) -> Path:
    if base is not None:
        return base
    if source.base:
        return resolve(source.base)
    lacks = "the adapter alone" if source.huggingface else "no config.json"
    raise UserError(f"{source.folder} holds {lacks}", "name the model that training started from: --base MODEL")
