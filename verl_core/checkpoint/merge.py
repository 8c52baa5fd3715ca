"""From the weights of a checkpoint to a Hugging Face folder, one block of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from verl_core.checkpoint.adapter import base_folder
from verl_core.checkpoint.find import find_checkpoint, on_this_machine, survey
from verl_core.checkpoint.folders import Folder
from verl_core.checkpoint.foreign.recognise import looked_for, recognise
from verl_core.checkpoint.foreign.source import SourceOptions
from verl_core.checkpoint.huggingface import FOLDER
from verl_core.checkpoint.manifest import MANIFEST, Manifest, content_faults, fsync, read_manifest
from verl_core.checkpoint.merge_adapter import AdapterAlone, FoldedModel, TrainedAdapter
from verl_core.checkpoint.merge_content import Content, Dtype, main_dtype
from verl_core.checkpoint.merge_foreign import foreign_content
from verl_core.checkpoint.merge_verify import Verify, require_changed, verify
from verl_core.checkpoint.merge_whole import WholeModel
from verl_core.checkpoint.model_folder import ModelFolder
from verl_core.checkpoint.safetensors_stream import MAX_FILE_BYTES, TensorPlan, write_file, write_index
from verl_core.checkpoint.shards import Shards
from verl_core.checkpoint.target import check_target, new_folder
from verl_core.config.errors import RlxError, UserError
from verl_core.models.adapter_folder import is_adapter
from verl_core.models.pretrained import resolve

Lora = Literal["fold", "adapter"]
Progress = Callable[[int], None]  # told the bytes done since the last call


@dataclass(frozen=True)
class MergePlan:
    """A merge that was checked against the architecture and can be carried out."""

    checkpoint: Path
    step: int | None
    role: str
    out: Path
    content: Content
    manifest: Manifest | None = None
    """Of a checkpoint that rlx wrote."""
    base: Path | None = None
    """The model that training started from, where a user names it: one equal to it is refused."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What to report of a foreign source."""

    @property
    def tensors(self) -> list[TensorPlan]:
        return self.content.tensors

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def checked_bytes(self) -> int:
        """Bytes that `check_contents` reads."""
        if self.manifest is None:
            return 0
        return sum(piece.bytes for _, piece in self.manifest.below(_needed_parts(self.role)))

    def report(self) -> dict[str, Any]:
        """What `rlx merge --json` prints."""
        return {
            "out": str(self.out),
            "tensors": len(self.tensors),
            "bytes": self.bytes,
            "dtype": str(main_dtype(self.tensors)).removeprefix("torch."),
            "step": self.step,
            "role": self.role,
            **self.content.report(),
            **self.extra,
        }


def plan_merge(
    source: Folder | str,
    out: Path | str,
    dtype: Dtype = "keep",
    role: str = "actor",
    lora: Lora = "fold",
    base: str | None = None,
    lora_alpha: float | None = None,
    allow_unchanged: bool = False,
    trust_remote_code: bool = False,
) -> MergePlan:
    """Finds the checkpoint, checks target, pieces and tensors. Nothing is written.

    Args:
        source: see `find_checkpoint`, or a checkpoint that another program wrote, see `recognise`.
        out: folder to make.
        dtype: what to write.
        role: whose weights.
        lora: what becomes of an adapter: folded into its base, or a folder of its own.
        base: folder or hub name of the model that training started from.
        lora_alpha: of a foreign adapter that does not tell it; refused where it says another, or nothing needs it.
        allow_unchanged: whether a model equal to its base is no error.
        trust_remote_code: whether model code that lies in a foreign checkpoint may run. That of rlx's own checkpoints
            was run by training.

    Raises UserError naming what is wrong: a target that holds something, a missing or cut file, a role that was not
    trained, tensors that are missing, unknown or of another shape than the architecture's, an adapter that is asked for
    and absent, or whose base is.
    """
    out = Path(out).expanduser()
    check_target(out)
    if lora_alpha is not None and not 0 < lora_alpha < math.inf:
        raise UserError(f"--lora-alpha {lora_alpha:g} is no alpha", "give the one of the training, above 0")
    source = on_this_machine(source, _needed_parts(role))
    try:
        below = resolve(base) if base else None
    except RlxError as error:
        raise type(error)(f"--base: {error.message}", error.hint) from error
    compared = None if allow_unchanged or lora == "adapter" else below
    foreign = None
    if source.is_dir() and not _is_own(source):
        foreign = recognise(source, SourceOptions(role, lora_alpha, below))
    if foreign is not None:
        content = foreign_content(foreign, dtype, lora, below, allow_unchanged, trust_remote_code)
        _require_alpha(lora_alpha, content, foreign.folder)
        told = {"source": foreign.describe()}
        return MergePlan(foreign.folder, foreign.step, foreign.role, out, content, base=compared, extra=told)
    checkpoint = _own(source, role)
    manifest = read_manifest(checkpoint)
    if role not in manifest.roles:
        raise UserError(
            f"{checkpoint} has no role {role!r}, it has {', '.join(sorted(manifest.roles)) or 'none'}",
            f"use --role {sorted(manifest.roles)[0]}" if manifest.roles else None,
        )
    content = _content(checkpoint, role, dtype, lora, below, allow_unchanged)
    _require_alpha(lora_alpha, content, checkpoint)
    return MergePlan(checkpoint, manifest.step, role, out, content, manifest, compared)


def check_contents(plan: MergePlan, progress: Progress | None = None) -> None:
    """Reads what will be merged and compares checksums, where the checkpoint has some. Raises UserError naming every
    damaged piece."""
    if plan.manifest is None:
        return
    if damaged := content_faults(plan.checkpoint, plan.manifest, _needed_parts(plan.role), progress):
        raise UserError(f"{plan.checkpoint}: " + "; ".join(damaged), "choose another step of the run")


def merge(
    plan: MergePlan,
    progress: Progress | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    how: Verify = "tensors",
) -> None:
    """Writes the folder under a temporary name, reads it back as `how` says, and moves it to its place.

    Raises RunError when the disk has too little room or what was written differs, UserError when it equals its base;
    the target then does not exist.
    """
    with new_folder(plan.out, plan.bytes) as folder:
        _write(plan, folder, max_file_bytes, progress)
        verify(plan.content, folder, how)
        if plan.base is not None:
            require_changed(folder, plan.base)


def _is_own(source: Path) -> bool:
    """Whether rlx wrote a checkpoint there, whole or not."""
    folder = source / "checkpoints" if (source / "checkpoints").is_dir() else source
    return (source / MANIFEST).is_file() or any(folder.glob(f"global_step_*/{MANIFEST}"))


def _own(source: Path, role: str) -> Path:
    try:
        return find_checkpoint(source, parts=_needed_parts(role))
    except UserError as error:
        if _is_own(source) or survey(source)[1]:
            raise
        also = f"of another program's, this is looked for: {looked_for()}"
        raise UserError(error.message, f"{error.hint}; {also}" if error.hint else also) from None


def _content(
    checkpoint: Path, role: str, dtype: Dtype, lora: Lora, base: Path | None, allow_unchanged: bool
) -> Content:
    folder = checkpoint / role
    if not is_adapter(folder / "weights"):
        if lora == "adapter":
            raise UserError(
                f"{folder} holds a whole model and no adapter", "leave --lora out, or name a run with model.lora_rank"
            )
        return WholeModel(Shards(folder / "weights"), folder / FOLDER, role, dtype, folder)
    adapter = TrainedAdapter.read(folder)
    if lora == "adapter":
        return AdapterAlone(adapter, dtype)
    below = base or base_folder(checkpoint, role)
    weights = ModelFolder(below)
    return FoldedModel(adapter, weights, weights.names, below, role, dtype, allow_unchanged)


def _require_alpha(asked: float | None, content: Content, where: Path) -> None:
    """Raises UserError for an alpha that a user gives and the merge does not use."""
    if asked is None:
        return
    adapter = content.adapter if isinstance(content, AdapterAlone | FoldedModel) else None
    if adapter is None:
        raise UserError(f"--lora-alpha {asked:g}, but {where} holds a whole model and no adapter", "leave it out")
    if adapter.config["lora_alpha"] != asked:
        raise UserError(f"--lora-alpha {asked:g}, but {where} says {adapter.config['lora_alpha']}", "leave it out")


def _needed_parts(role: str) -> tuple[str, str]:
    return f"{role}/weights/", f"{role}/{FOLDER}/"


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
