"""What a merge needs to know of a checkpoint that another program wrote, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class SourceOptions:
    """What a user says about a source beside its place."""

    role: str = "actor"
    lora_alpha: float | None = None
    """Of an adapter whose checkpoint does not tell its alpha."""
    base: Path | None = None
    """Folder of the Hugging Face model that training started from."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor, as it is stored."""

    dtype: torch.dtype
    shape: torch.Size


@dataclass(frozen=True)
class SourceAdapter:
    """A LoRA adapter; small beside its base, hence whole in memory."""

    config: Mapping[str, Any]
    """peft's adapter_config.json: at least r, lora_alpha, target_modules."""
    tensors: Mapping[str, Tensor]
    """By peft's names, see `verl_core.models.adapter_folder.tensor_name`."""


class ForeignSource(Protocol):
    """A checkpoint that can be merged once `faults` is empty; before, only `kind`, `folder` and `describe` may be used.

    Opening one reads headers and pickles, no tensor, and raises UserError for what cannot be a checkpoint of its kind
    at all (a refused pickle, JSON that is none).
    """

    @property
    def kind(self) -> str:
        """Format and writer, as a person would say it: "veRL FSDP"."""
        ...

    @property
    def folder(self) -> Path:
        """Where its files are: for messages."""
        ...

    @property
    def role(self) -> str:
        """actor, critic or reward_model: the kind of network, see `merge_whole.architecture`."""
        ...

    @property
    def step(self) -> int | None:
        """Training step, where the checkpoint tells it."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The model's own tensors by Hugging Face name, without those of an adapter; empty where the adapter alone was
        saved. Whole shapes, a padded vocabulary included."""
        ...

    @property
    def huggingface(self) -> Path | None:
        """Folder with config.json and, where saved, tokenizer, generation config and code; None: ask for --base."""
        ...

    @property
    def adapter(self) -> SourceAdapter | None:
        """The adapter beside or instead of the model's tensors."""
        ...

    @property
    def base(self) -> str | None:
        """Folder or hub name of the model that training started from, where the checkpoint tells it."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows start to stop of a tensor in its stored dtype, reading no more than these; a scalar is whole."""
        ...

    def faults(self) -> list[str]:
        """Every missing, truncated or contradicting piece, each a phrase with the name of its file."""
        ...

    def describe(self) -> str:
        """Kind, ranks and layout, for the report: "veRL FSDP2, 2 ranks"."""
        ...
