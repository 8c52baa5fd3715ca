"""Writes safetensors files a block at a time, so that merging a model needs the memory of one block.

Format: https://github.com/huggingface/safetensors#format - length of the header (8 bytes, little endian), header (JSON:
name -> dtype, shape, offsets of its bytes), then the tensors' bytes without gaps. The library's own writer takes whole
files.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from verl_core.checkpoint.folders import Folder, writing

MAX_FILE_BYTES = 4 << 30
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class TensorPlan:
    """One tensor of the output."""

    name: str
    dtype: torch.dtype
    shape: torch.Size

    @property
    def bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


def file_plan(tensors: list[TensorPlan], max_file_bytes: int = MAX_FILE_BYTES) -> dict[str, list[TensorPlan]]:
    """File name -> its tensors: one `model.safetensors`, or several within `max_file_bytes` each, named as transformers
    names them; a tensor beyond the limit has a file of its own."""
    groups: list[list[TensorPlan]] = [[]]
    filled = 0
    for tensor in tensors:
        if groups[-1] and filled + tensor.bytes > max_file_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += tensor.bytes
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups, start=1)}


def write_file(
    path: Folder,
    tensors: list[TensorPlan],
    blocks: Callable[[TensorPlan], Iterator[Tensor]],
    progress: Callable[[int], None] | None = None,
    metadata: Mapping[str, str] = MappingProxyType({"format": "pt"}),
) -> None:
    """Writes one file durably; `blocks` gives the values of a tensor in order, in its planned dtype or as bytes."""
    ordered = sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize)  # wide types first: every tensor stays aligned
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for tensor in ordered:
        span = [offset, offset + tensor.bytes]
        header[tensor.name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": span}
        offset += tensor.bytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with writing(path) as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in ordered:
            for block in blocks(tensor):
                data = block.contiguous().reshape(-1).view(torch.uint8).numpy()
                file.write(data)
                if progress:
                    progress(data.nbytes)


def write_index(folder: Path, files: dict[str, list[TensorPlan]]) -> None:
    """`model.safetensors.index.json`, which only a model of several files has."""
    if len(files) == 1:
        return
    total = sum(tensor.bytes for tensors in files.values() for tensor in tensors)
    weight_map = {tensor.name: file for file, tensors in files.items() for tensor in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
