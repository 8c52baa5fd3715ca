"""Weights from one process to another on the same machine, through safetensors files in memory.

The reader maps the files: on the CPU the engine computes on the very pages that were written. They stay as long as it
uses them, though the writer closes them when the update is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from verl_core.config.errors import RunError
from verl_core.rollout.child.memory import memory_file, path_of

_BUCKET_BYTES = 256 * 2**20  # what the writer holds three times


@contextmanager
def written(stream: Iterable[tuple[str, Tensor]]) -> Iterator[list[str]]:
    """Paths of the files that hold the tensors of the stream, for the length of the block.

    Raises RunError when neither memory nor the temporary folder has room.
    """
    with ExitStack() as stack:
        files = []
        for bucket in _buckets(stream):
            size = sum(t.nbytes for t in bucket.values())
            try:
                file = stack.enter_context(memory_file(size))
                left = memoryview(save(bucket))
                while left:
                    left = left[file.write(left) :]
            except OSError as error:
                raise RunError(
                    f"weights of {size / 2**20:.0f} MiB for a rollout engine cannot be written: {error}",
                    "free memory in /dev/shm, or set TMPDIR to a larger disk",
                ) from error
            files.append(path_of(file))
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
