"""Proof that a merged folder holds what was to be merged, before it takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor

from verl_core.checkpoint.merge_adapter import AdapterAlone
from verl_core.checkpoint.merge_content import BLOCK_BYTES, Content
from verl_core.checkpoint.merge_logits import require_same_logits
from verl_core.checkpoint.model_folder import ModelFolder
from verl_core.checkpoint.safetensors_stream import TensorPlan
from verl_core.checkpoint.weights import blocks
from verl_core.config.errors import RunError, UserError

Verify = Literal["none", "tensors", "logits"]
LOGITS_BYTES = 1 << 30
"""Up to this size of the folder logits are compared where the user does not choose; both models are in memory then."""


def chosen_verify(content: Content, asked: Verify | None) -> Verify:
    """What a user asks for; else logits for a small model and tensors for others. Raises UserError for the logits of
    an adapter alone, which is no model."""
    if isinstance(content, AdapterAlone):
        if asked == "logits":
            raise UserError("--verify logits: an adapter without its base has none", "use --verify tensors")
        return asked or "tensors"
    return asked or ("logits" if sum(tensor.bytes for tensor in content.tensors) <= LOGITS_BYTES else "tensors")


def verify(content: Content, folder: Path, how: Verify) -> None:
    """Reads the folder back.

    Args:
        content: what was to be written.
        folder: what was written.
        how: none: names and shapes alone. tensors: every value is compared too. logits: beside that both models are
            loaded, and give the same logits for the same tokens.

    Raises RunError where they differ.
    """
    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    written: dict[str, Any] = {name: file.get_slice(name) for file in files for name in file.keys()}  # noqa: SIM118
    planned = {tensor.name: list(tensor.shape) for tensor in content.tensors}
    if {name: part.get_shape() for name, part in written.items()} != planned:
        raise RunError(f"{folder}: what was written does not read back as planned", "merge again, to another disk")
    if how == "none":
        return
    holders = {name: file for file in files for name in file.keys()}  # noqa: SIM118
    for tensor in content.tensors:
        _require_same(content, tensor, written[tensor.name] if tensor.shape else holders[tensor.name], folder)
    if how == "logits":
        require_same_logits(content, folder)


def require_changed(folder: Path, base: Path) -> None:
    """Raises UserError when every tensor of `folder` is that of `base` in the same dtype: nothing was trained, or the
    wrong weights were merged."""
    merged, start = ModelFolder(folder), ModelFolder(base)
    shared = [name for name in merged.names if name in start.names]
    if not shared:
        raise UserError(f"--base {base} has none of the merged model's tensors", "name the model that was trained")
    for name in shared:
        if merged.shape(name) != start.shape(name):
            return
        row = 0
        for ours in blocks(merged, name, BLOCK_BYTES):
            last = row + (len(ours) if ours.dim() else 1)
            if not torch.equal(ours, start.rows(name, row, last).to(ours.dtype)):
                return
            row = last
    raise UserError(
        f"the merged model is --base {base}: all {len(shared)} tensors are equal",
        "merge a later step, or in fp32; --allow-unchanged takes it as it is",
    )


def _require_same(content: Content, tensor: TensorPlan, stored: Any, folder: Path) -> None:
    start = 0
    for block in content.blocks(tensor):
        if not tensor.shape:
            read = stored.get_tensor(tensor.name)
        else:
            read = stored[start : start + len(block)]
            start += len(block)
        if not same_bytes(read, block):
            raise RunError(
                f"{folder}: {tensor.name} does not read back as it was written", "merge again, to another disk"
            )


def same_bytes(first: Tensor, second: Tensor) -> bool:
    """Bit by bit: NaN equals NaN, and -0 is not 0."""
    a, b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (first, second))
    return first.dtype == second.dtype and torch.equal(a, b)
