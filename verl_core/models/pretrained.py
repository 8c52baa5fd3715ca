"""Models from Hugging Face folders: the network for a role, and what surrounds it lives in `folder.py` and
`tokenizer.py`.

Weights are read in the dtype asked for, tied embeddings stay one parameter, and a model cut over several processes is
read once: other ranks build the same network without touching its memory and are sent their pieces.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

from verl_core.config.errors import UserError
from verl_core.config.schema import ModelConfig
from verl_core.models.attention import NAME as PACKED
from verl_core.models.folder import load_generation_config, load_hf_config, resolve
from verl_core.models.tokenizer import eos_ids, load_tokenizer
from verl_core.platforms.ran_out import ran_out

__all__ = [
    "ValueModel",
    "eos_ids",
    "load_causal_lm",
    "load_generation_config",
    "load_hf_config",
    "load_tokenizer",
    "load_value_model",
    "resolve",
]

# sizes that differ from the config's, a missing file, an unknown architecture, a cut file
LOAD_ERRORS = (RuntimeError, OSError, ValueError, SafetensorError)
HEAD = ("score.weight", "score.bias")  # transformers' names for a token classification head


class ValueModel(nn.Module):
    """A transformer body and one linear layer to a scalar a token; parameters are named as transformers' token
    classification models name theirs (`<prefix>.layers...`, `score.weight`, `score.bias`)."""

    def __init__(self, body: PreTrainedModel, prefix: str):
        super().__init__()
        self.config = body.config
        self.prefix = prefix
        self.add_module(prefix, body)
        self.score = nn.Linear(body.config.get_text_config().hidden_size, 1, dtype=body.dtype)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    @property
    def body(self) -> PreTrainedModel:
        return getattr(self, self.prefix)


def load_causal_lm(
    model: ModelConfig,
    path: str | Path | None = None,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    attn: str = PACKED,
    weights: bool = True,
) -> PreTrainedModel:
    """The language model of a folder or hub name (`path`, else model.path) in `dtype` on `device`, in eval mode.

    `attn` is transformers' attention name. weights=False: right shapes and buffers, parameters not initialised (they
    are to be overwritten). Raises UserError for a folder that lacks something or weights that do not fit the config.
    """
    network = _load(AutoModelForCausalLM, model, path, dtype, attn, weights)
    nn.Module.to(network, device)  # plainly: transformers' own `to` also judges quantised models
    return network


def load_value_model(
    model: ModelConfig,
    path: str | Path | None = None,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    attn: str = PACKED,
    weights: bool = True,
) -> ValueModel:
    """The body of a model with a value head: the folder's own where it holds `score` (a saved critic or a reward
    model with one output), else zeros, so that the first values are 0. Arguments and errors as `load_causal_lm`."""
    with _without_load_report():
        body = _load(AutoModel, model, path, dtype, attn, weights)
    value_model = ValueModel(body, body.base_model_prefix or "model")
    value_model.config.num_labels = 1
    name = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES.get(value_model.config.model_type)
    value_model.config.architectures = [name] if name else None
    if weights:
        _load_head(value_model, resolve(path or model.path))
    return value_model.eval().to(device)


def _load(
    auto: Any, model: ModelConfig, path: str | Path | None, dtype: torch.dtype, attn: str, weights: bool
) -> PreTrainedModel:
    folder = resolve(path or model.path, weights=weights)
    config = load_hf_config(model, folder)
    options = {"dtype": dtype, "attn_implementation": attn, "trust_remote_code": model.trust_remote_code}
    if not weights:
        with no_init_weights():
            network = auto.from_config(config, **options)
        network.tie_weights()
        return network.eval()
    try:
        network, report = auto.from_pretrained(folder, config=config, output_loading_info=True, **options)
    except LOAD_ERRORS as error:
        if ran_out(error):
            raise
        raise UserError(
            f"cannot load the model in {folder}: {_first_line(error)}", hint="check its config.json and weights"
        ) from error
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"{folder} lacks weights of {len(missing)} parameters, e.g. {missing[0]}",
            hint="copy the whole folder again, or correct model.override_config",
        )
    return network.eval()


@contextmanager
def _without_load_report() -> Iterator[None]:
    """transformers warns of each weight that a body has no place for: an output layer, or the head that is read next.
    What is missing is refused by name."""
    told = logging.getLogger("transformers.modeling_utils")
    level = told.level
    told.setLevel(logging.ERROR)
    try:
        yield
    finally:
        told.setLevel(level)


def _load_head(value_model: ValueModel, folder: Path) -> None:
    """Copies `score.weight` and `score.bias` from the folder's safetensors files, where they are."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            for name in set(HEAD) & set(stored.keys()):
                _copy_head(value_model.get_parameter(name), stored.get_tensor(name), name, file)


@torch.no_grad()
def _copy_head(parameter: Tensor, value: Tensor, name: str, file: Path) -> None:
    if parameter.shape != value.shape:
        raise UserError(
            f"{name} in {file} has shape {list(value.shape)}, a value head has {list(parameter.shape)}",
            hint="set critic.model.path to a language model or a model with one output",
        )
    parameter.copy_(value)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
