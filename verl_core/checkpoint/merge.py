"""From the sharded weights of a checkpoint to a Hugging Face folder, one block of rows at a time."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification, PreTrainedModel

from verl_core.checkpoint.find import find_checkpoint
from verl_core.checkpoint.huggingface import FOLDER, copy_text_files
from verl_core.checkpoint.manifest import Manifest, content_faults, fsync, read_manifest
from verl_core.checkpoint.published import layout, published
from verl_core.checkpoint.safetensors_stream import MAX_FILE_BYTES, TensorPlan, file_plan, write_file, write_index
from verl_core.checkpoint.shards import Shards
from verl_core.config.errors import RunError, UserError

Dtype = Literal["keep", "bf16", "fp32"]
Progress = Callable[[int], None]  # told the bytes done since the last call
_CAST = {"bf16": torch.bfloat16, "fp32": torch.float32}
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class MergePlan:
    """A merge that was checked against the architecture and can be carried out."""

    checkpoint: Path
    manifest: Manifest
    role: str
    out: Path
    shards: Shards
    model: PreTrainedModel  # on the meta device
    tensors: list[TensorPlan]
    origin: dict[str, str]  # name of a tensor to write -> the stored one it is made from

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of most values: what config.json names, hence what transformers loads in."""
        values: Counter[torch.dtype] = Counter()
        for tensor in self.tensors:
            values[tensor.dtype] += tensor.shape.numel() if tensor.dtype.is_floating_point else 0
        return values.most_common(1)[0][0]

    @property
    def checked_bytes(self) -> int:
        """Bytes that `check_contents` reads."""
        return sum(piece.bytes for _, piece in self.manifest.below(_needed_parts(self.role)))

    def report(self) -> dict[str, Any]:
        """What `rlx merge --json` prints."""
        return {
            "out": str(self.out),
            "tensors": len(self.tensors),
            "bytes": self.bytes,
            "dtype": str(self.dtype).removeprefix("torch."),
            "step": self.manifest.step,
            "role": self.role,
        }


def plan_merge(source: Path | str, out: Path | str, dtype: Dtype = "keep", role: str = "actor") -> MergePlan:
    """Finds the checkpoint (see `find_checkpoint`), checks target, pieces and tensors. Nothing is written.

    Raises UserError naming what is wrong: a target that holds something, a missing or cut file, a role that was not
    trained, tensors that are missing, unknown or of another shape than the architecture's.
    """
    out = Path(out).expanduser()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty", "choose another --out, or remove it")
    checkpoint = find_checkpoint(source, parts=_needed_parts(role))
    manifest = read_manifest(checkpoint)
    if role not in manifest.roles:
        raise UserError(
            f"{checkpoint} has no role {role!r}, it has {', '.join(sorted(manifest.roles)) or 'none'}",
            f"use --role {sorted(manifest.roles)[0]}" if manifest.roles else None,
        )
    shards = Shards(checkpoint / role / "weights")
    model = _architecture(checkpoint / role / FOLDER, role)
    names = _checked_names(shards, model, checkpoint / role)
    tensors: list[TensorPlan] = []
    origin: dict[str, str] = {}
    for stored, parts in layout(model, {name: shards.shape(name) for name in names}).items():
        tensors += [TensorPlan(name, _cast(shards.dtype(stored), dtype), shape) for name, shape in parts.items()]
        origin |= dict.fromkeys(parts, stored)
    return MergePlan(checkpoint, manifest, role, out, shards, model, tensors, origin)


def check_contents(plan: MergePlan, progress: Progress | None = None) -> None:
    """Reads what will be merged and compares checksums. Raises UserError naming every damaged piece."""
    if damaged := content_faults(plan.checkpoint, plan.manifest, _needed_parts(plan.role), progress):
        raise UserError(f"{plan.checkpoint}: " + "; ".join(damaged), "choose another step of the run")


def merge(plan: MergePlan, progress: Progress | None = None, max_file_bytes: int = MAX_FILE_BYTES) -> None:
    """Writes the folder under a temporary name, reads its headers back, and moves it to its place.

    Raises RunError when the disk has too little room; the target then does not exist.
    """
    out = plan.out
    temporary = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)  # of a merge that was killed
        _check_space(plan)
        temporary.mkdir()
        _write(plan, temporary, max_file_bytes, progress)
        _read_back(plan, temporary)
        if out.is_dir():
            out.rmdir()
        temporary.rename(out)
        fsync(out.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(
            f"cannot write {out}: {error.strerror or error}", "free some space or choose another --out"
        ) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _needed_parts(role: str) -> tuple[str, str]:
    return f"{role}/weights/", f"{role}/{FOLDER}/"


def _architecture(folder: Path, role: str) -> PreTrainedModel:
    """The network the weights belong to, on the meta device: names and shapes without memory."""
    auto = AutoModelForTokenClassification if role == "critic" else AutoModelForCausalLM
    # Code lies in the folder only when the run had model.trust_remote_code, and training ran it.
    trust = any(folder.glob("*.py"))
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust)
        if role == "critic":
            config.num_labels = 1
        with torch.device("meta"):
            return auto.from_config(config, trust_remote_code=trust)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot build the model of {folder / 'config.json'}: {reason}") from error


def _checked_names(shards: Shards, model: PreTrainedModel, where: Path) -> list[str]:
    """Names to write in the model's order, each tie once. Raises UserError for everything that does not fit."""
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    stored_of_tie = {target: source for target, source in model.all_tied_weights_keys.items() if target in expected}
    problems = []
    names = []
    for name, shape in expected.items():
        if name in stored_of_tie and (name not in shards or stored_of_tie[name] in shards):
            if name in shards and not _same(shards, name, stored_of_tie[name]):
                problems.append(f"{name} is tied to {stored_of_tie[name]} in the config, but their values differ")
            continue
        if name not in shards:
            if not any(source == name and target in shards for target, source in stored_of_tie.items()):
                problems.append(f"{name} is missing")
        elif shards.shape(name) != shape:
            problems.append(f"{name} is {list(shards.shape(name))}, the config says {list(shape)}")
        elif not shards.complete(name):
            problems.append(f"{name} is incomplete")
        else:
            names.append(name)
    problems += [f"{name} is unknown to {type(model).__name__}" for name in shards.tensors if name not in expected]
    if problems:
        raise UserError(f"{where}: " + "; ".join(problems), "choose another step, or correct huggingface/config.json")
    return names


def _same(shards: Shards, first: str, second: str) -> bool:
    pairs = zip(shards.blocks(first, _BLOCK_BYTES), shards.blocks(second, _BLOCK_BYTES), strict=True)
    return shards.shape(first) == shards.shape(second) and all(torch.equal(a, b) for a, b in pairs)


def _cast(stored: torch.dtype, dtype: Dtype) -> torch.dtype:
    return stored if dtype == "keep" or not stored.is_floating_point else _CAST[dtype]


def _check_space(plan: MergePlan) -> None:
    free = shutil.disk_usage(plan.out.parent).free
    if plan.bytes > free:
        raise RunError(
            f"{plan.out} needs {plan.bytes:,} bytes, its disk has {free:,} free ({plan.bytes - free:,} missing)",
            "free some space, choose another --out, or use --dtype bf16",
        )


def _write(plan: MergePlan, folder: Path, max_file_bytes: int, progress: Progress | None) -> None:
    @lru_cache(maxsize=1)  # the parts of one stored tensor follow each other
    def parts(stored: str) -> dict[str, Tensor]:
        whole = torch.cat(list(plan.shards.blocks(stored, _BLOCK_BYTES)))
        return published(plan.model, stored, whole)

    def blocks(tensor: TensorPlan) -> Iterator[Tensor]:
        stored = plan.origin[tensor.name]
        same = stored == tensor.name and plan.shards.shape(stored) == tensor.shape
        values = plan.shards.blocks(stored, _BLOCK_BYTES) if same else iter([parts(stored)[tensor.name]])
        return (value.to(tensor.dtype) for value in values)

    files = file_plan(plan.tensors, max_file_bytes)
    for name, tensors in files.items():
        write_file(folder / name, tensors, blocks, progress)
    write_index(folder, files)
    copy_text_files(plan.checkpoint / plan.role / FOLDER, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _set_dtype(config, str(plan.dtype).removeprefix("torch."))
    config["architectures"] = [type(plan.model).__name__]
    if plan.role == "critic":
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for path in folder.iterdir():
        if path.is_file():
            fsync(path)
    fsync(folder)


def _set_dtype(config: dict[str, Any], dtype: str) -> None:
    """In the config and in those nested in it (text_config, ...); `torch_dtype` is the older name."""
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    for value in config.values():
        if isinstance(value, dict) and ("dtype" in value or "torch_dtype" in value):
            _set_dtype(value, dtype)


def _read_back(plan: MergePlan, folder: Path) -> None:
    written: dict[str, list[int]] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            written |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    if written != {tensor.name: list(tensor.shape) for tensor in plan.tensors}:
        raise RunError(f"{plan.out}: what was written does not read back as planned")
