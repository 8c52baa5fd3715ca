"""Weights from one process to another on the same machine, through safetensors files in memory (/dev/shm).

The reader maps the files: on the CPU the engine computes on the very pages that were written. They stay as long as it
uses them, though the names go when the update is over.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from verl_core.config.errors import RunError

_MEMORY = Path("/dev/shm")
_BUCKET_BYTES = 1 << 30  # what the writer holds twice


@contextmanager
def written(stream: Iterable[tuple[str, Tensor]]) -> Iterator[list[str]]:
    """The files that hold the tensors of the stream, for the length of the block.

    Raises RunError when neither memory nor the temporary folder has room.
    """
    with ExitStack() as stack:
        files = []
        for bucket in _buckets(stream):
            size = sum(t.nbytes for t in bucket.values())
            roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > size + _BUCKET_BYTES // 16
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="rlx-weights-", dir=_MEMORY if roomy else None)
            )
            files.append(str(Path(folder) / "weights.safetensors"))
            try:
                save_file(bucket, files[-1])
            except (OSError, SafetensorError) as error:
                raise RunError(
                    f"weights of {size / 2**20:.0f} MiB for a rollout engine cannot be written to {folder}: {error}",
                    "free memory in /dev/shm, or set TMPDIR to a larger disk",
                ) from error
        yield files


def mapped(files: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of these files, in their memory."""
    for file in files:
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a dict
                yield name, stored.get_tensor(name)


def _buckets(stream: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    bucket: dict[str, Tensor] = {}
    for name, tensor in stream:
        if bucket and sum(t.nbytes for t in bucket.values()) + tensor.nbytes > _BUCKET_BYTES:
            yield bucket
            bucket = {}
        # A copy of its own: two names of one tied tensor may come, which safetensors refuses to write.
        bucket[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    if bucket:
        yield bucket
