"""Folders that torch.distributed.checkpoint wrote: `.metadata` beside `*.distcp`, names of the Hugging Face model."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from verl_core.checkpoint.foreign.dcp_files import METADATA, DcpFiles
from verl_core.checkpoint.foreign.prefixes import expected_names, without_prefix
from verl_core.checkpoint.foreign.source import SourceAdapter, SourceOptions, TensorInfo

_BELOW = ("", "pytorch_model_fsdp_0")  # the second is how accelerate names it


def open_source(folder: Path, options: SourceOptions) -> DcpSource | None:
    """The checkpoint in the folder itself, or in the one that accelerate made below it."""
    for place in _BELOW:
        if (folder / place / METADATA).is_file():
            return DcpSource(folder / place, options)
    return None


class DcpSource:
    """See `ForeignSource`. The configuration lies beside the files, in `huggingface/`, or above, as the Trainer of
    transformers leaves it; names are stripped of a prefix where it or the base tells the model's own."""

    kind = "torch distributed"
    step: int | None = None
    adapter: SourceAdapter | None = None
    base: str | None = None

    def __init__(self, folder: Path, options: SourceOptions):
        self.folder, self.role = folder, options.role
        self.huggingface = huggingface_beside(folder)
        self._files = DcpFiles(folder)
        expected = expected_names(self.huggingface or options.base, options.role)
        self._stored = without_prefix(self._files.tensors, expected, str(folder))
        stored = {name: self._files.tensors[at] for name, at in self._stored.items()}
        self.tensors = {name: TensorInfo(tensor.dtype, tensor.shape) for name, tensor in stored.items()}

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        shape = self.tensors[name].shape
        box = ((start, *[0] * (len(shape) - 1)), (min(stop, shape[0]), *shape[1:])) if shape else ((), ())
        return self._files.region(self._stored[name], *box)

    def faults(self) -> list[str]:
        return self._files.faults(list(self._stored.values())) if self._stored else ["it holds no tensor"]

    def describe(self) -> str:
        files = {box.file for tensor in self._files.tensors.values() for box in tensor.boxes}
        return f"{self.kind}, {len(files)} file{'s' if len(files) != 1 else ''}"


def huggingface_beside(folder: Path) -> Path | None:
    """The folder of the model's config: this one, `huggingface/` in it, or the one above."""
    places = (folder, folder / "huggingface", folder.parent)
    return next((place for place in places if (place / "config.json").is_file()), None)
