"""What a merge writes of a checkpoint that another program wrote."""

from __future__ import annotations

from pathlib import Path

from verl_core.checkpoint.foreign.source import ForeignSource
from verl_core.checkpoint.foreign.source_weights import SourceWeights
from verl_core.checkpoint.huggingface import require_trusted_code
from verl_core.checkpoint.merge_adapter import AdapterAlone, FoldedModel, TrainedAdapter
from verl_core.checkpoint.merge_content import Content, Dtype
from verl_core.checkpoint.merge_whole import WholeModel, architecture, checked_names
from verl_core.checkpoint.model_folder import ModelFolder
from verl_core.config.errors import RlxError, UserError
from verl_core.models.pretrained import resolve


def foreign_content(
    source: ForeignSource,
    dtype: Dtype,
    lora: str,
    base: Path | None,
    allow_unchanged: bool = False,
    trust_remote_code: bool = False,
) -> Content:
    """Of a source without faults. `base` is the folder that a user names: of the model below an adapter, and of config
    and tokenizer where the source has none; the others are as for `plan_merge`.

    Raises UserError for what does not fit the architecture, for a base or config that nobody names, and for model code
    that is not trusted.
    """
    adapter = source.adapter
    if adapter is None and lora == "adapter":
        raise UserError(f"{source.folder} holds a whole model and no adapter", "leave --lora out")
    huggingface = source.huggingface or (_tokenizer(source, base) if lora == "adapter" else _base(source, base))
    if lora == "fold":
        require_trusted_code(huggingface, trust_remote_code)
    if adapter is None:
        weights = SourceWeights(source, architecture(huggingface, source.role))
        return WholeModel(weights, huggingface, source.role, dtype, source.folder)
    trained = TrainedAdapter(source.folder, adapter.config, adapter.tensors, huggingface)
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


def _tokenizer(source: ForeignSource, base: Path | None) -> Path:
    """An adapter that stays one needs nothing of its base but a tokenizer, where neither has to be here."""
    try:
        return _base(source, base)
    except RlxError:
        return source.folder


def _base(source: ForeignSource, base: Path | None) -> Path:
    if base is not None:
        return base
    if source.base:
        return resolve(source.base)
    lacks = "the adapter alone" if source.huggingface else "no config.json"
    raise UserError(f"{source.folder} holds {lacks}", "name the model that training started from: --base MODEL")
