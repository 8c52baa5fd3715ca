"""A folder of published weights inside another program's checkpoint."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from torch import Tensor

from verl_core.checkpoint.foreign.source import SourceAdapter, TensorInfo
from verl_core.checkpoint.model_folder import ModelFolder
from verl_core.config.errors import UserError


class PublishedFolder:
    """See `ForeignSource`: the files as they are, checked against their config."""

    adapter: SourceAdapter | None = None
    base: str | None = None

    def __init__(self, folder: Path, kind: str, role: str, step: int | None):
        self.folder, self.kind, self.role, self.step = folder, kind, role, step
        self.huggingface = folder if (folder / "config.json").is_file() else None

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        names = self._files.names
        return {name: TensorInfo(self._files.dtype(name), self._files.shape(name)) for name in names}

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self._files.rows(name, start, stop)

    def faults(self) -> list[str]:
        try:
            return [] if self._files.names else ["it holds no tensor"]
        except UserError as error:
            return [error.message]

    def describe(self) -> str:
        return f"{self.kind}, as published"

    @cached_property
    def _files(self) -> ModelFolder:
        return ModelFolder(self.folder)
