"""From the weights of a checkpoint to a Hugging Face folder, one block of rows at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import safe_open

from verl_core.checkpoint.adapter import base_folder
from verl_core.checkpoint.find import find_checkpoint
from verl_core.checkpoint.huggingface import FOLDER
from verl_core.checkpoint.manifest import Manifest, content_faults, fsync, read_manifest
from verl_core.checkpoint.merge_adapter import AdapterAlone, FoldedModel
from verl_core.checkpoint.merge_content import Content, Dtype, main_dtype
from verl_core.checkpoint.merge_whole import WholeModel
from verl_core.checkpoint.safetensors_stream import MAX_FILE_BYTES, TensorPlan, write_file, write_index
from verl_core.config.errors import RunError, UserError
from verl_core.models.adapter_folder import is_adapter

Lora = Literal["fold", "adapter"]
Progress = Callable[[int], None]  # told the bytes done since the last call


@dataclass(frozen=True)
class MergePlan:
    """A merge that was checked against the architecture and can be carried out."""

    checkpoint: Path
    manifest: Manifest
    role: str
    out: Path
    content: Content

    @property
    def tensors(self) -> list[TensorPlan]:
        return self.content.tensors

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

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
            "dtype": str(main_dtype(self.tensors)).removeprefix("torch."),
            "step": self.manifest.step,
            "role": self.role,
            **self.content.report(),
        }


def plan_merge(
    source: Path | str, out: Path | str, dtype: Dtype = "keep", role: str = "actor", lora: Lora = "fold"
) -> MergePlan:
    """Finds the checkpoint (see `find_checkpoint`), checks target, pieces and tensors. Nothing is written. Where the
    role trained an adapter, `lora` says what becomes of it: folded into its base, or a folder of its own.

    Raises UserError naming what is wrong: a target that holds something, a missing or cut file, a role that was not
    trained, tensors that are missing, unknown or of another shape than the architecture's, an adapter that is asked for
    and absent, or whose base is.
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
    return MergePlan(checkpoint, manifest, role, out, _content(checkpoint, role, dtype, lora))


def _content(checkpoint: Path, role: str, dtype: Dtype, lora: Lora) -> Content:
    folder = checkpoint / role
    if not is_adapter(folder / "weights"):
        if lora == "adapter":
            raise UserError(
                f"{folder} holds a whole model and no adapter", "leave --lora out, or name a run with model.lora_rank"
            )
        return WholeModel(folder, role, dtype)
    if lora == "adapter":
        return AdapterAlone(folder, dtype)
    return FoldedModel(folder, base_folder(checkpoint, role), role, dtype)


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


def _check_space(plan: MergePlan) -> None:
    free = shutil.disk_usage(plan.out.parent).free
    if plan.bytes > free:
        raise RunError(
            f"{plan.out} needs {plan.bytes:,} bytes, its disk has {free:,} free ({plan.bytes - free:,} missing)",
            "free some space, choose another --out, or use --dtype bf16",
        )


def _write(plan: MergePlan, folder: Path, max_file_bytes: int, progress: Progress | None) -> None:
    files = plan.content.files(max_file_bytes)
    for name, tensors in files.items():
        write_file(folder / name, tensors, plan.content.blocks, progress)
    write_index(folder, files)
    plan.content.finish(folder)
    for path in folder.iterdir():
        if path.is_file():
            fsync(path)
    fsync(folder)


def _read_back(plan: MergePlan, folder: Path) -> None:
    written: dict[str, list[int]] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            written |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    if written != {tensor.name: list(tensor.shape) for tensor in plan.tensors}:
        raise RunError(f"{plan.out}: what was written does not read back as planned")
