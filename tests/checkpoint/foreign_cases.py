"""Checkpoints of other programs for tests: those in fixtures/, and what a merge of one must give."""

import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from verl_core.checkpoint.merge import merge, plan_merge
from verl_core.checkpoint.merge_verify import Verify
from verl_core.config.errors import UserError

TRUTH = "truth.safetensors"


def unpacked(name: str, folder: Path) -> Path:
    """The folders of fixtures/<name>.tar.xz below `folder`; its maker is make_<name>_checkpoints.py."""
    with tarfile.open(Path(__file__).parent / "fixtures" / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def merged(source: Path, out: Path, how: Verify = "logits", **options: Any) -> dict[str, Tensor]:
    """What `rlx merge SOURCE --out OUT --verify HOW` writes."""
    merge(plan_merge(source, out, **options), how=how)
    return load_file(out / "model.safetensors")


def assert_same_tensors(got: dict[str, Tensor], truth: dict[str, Tensor]) -> None:
    """Same names, dtypes and bytes."""
    assert got.keys() == truth.keys()
    different = [n for n, value in truth.items() if got[n].dtype != value.dtype or not torch.equal(got[n], value)]
    assert not different


def assert_loads_whole(folder: Path) -> None:
    """transformers finds every weight it expects, and no other."""
    _, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not (info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"])


def refusal(source: Path, out: Path, **options: Any) -> str:
    """The message with which a merge is refused; nothing has been written."""
    with pytest.raises(UserError) as caught:
        plan_merge(source, out, **options)
    assert not out.exists()
    return caught.value.message


def cut(path: Path, count: int) -> None:
    """Removes the last `count` bytes."""
    data = path.read_bytes()
    path.write_bytes(data[:-count])
