"""From a Hugging Face folder to a checkpoint of step 0, which training starts from: the inverse of a merge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from verl_core.checkpoint.distributed import ENGINE, FORMAT
from verl_core.checkpoint.fetch_model import fetched_model
from verl_core.checkpoint.folders import Folder, folder_of
from verl_core.checkpoint.huggingface import model_code, require_trusted_code, save_huggingface_files
from verl_core.checkpoint.manifest import write_manifest
from verl_core.checkpoint.merge_content import BLOCK_BYTES, main_dtype
from verl_core.checkpoint.merge_verify import same_bytes
from verl_core.checkpoint.merge_whole import architecture, checked_names
from verl_core.checkpoint.model_folder import ModelFolder
from verl_core.checkpoint.object_errors import before_the_start
from verl_core.checkpoint.objects import ObjectPath
from verl_core.checkpoint.published import joined, layout
from verl_core.checkpoint.safetensors_stream import MAX_FILE_BYTES, TensorPlan, file_plan, write_file
from verl_core.checkpoint.shards import Shards
from verl_core.checkpoint.target import check_target, new_folder
from verl_core.checkpoint.weights import blocks
from verl_core.config.errors import RunError, UserError

_FRESH = {"updates": 0, "steps": {}}  # of an engine that has made no step


@dataclass(frozen=True)
class ReversePlan:
    """A checkpoint to make of a folder that was checked against its architecture."""

    folder: Path
    out: Path
    role: str
    model: PreTrainedModel
    weights: ModelFolder
    parts: Mapping[str, tuple[str, ...]]
    """Name of a tensor to write -> the folder's tensors that it is made from."""

    @property
    def tensors(self) -> list[TensorPlan]:
        own, stored = self.model.state_dict(), self.weights
        return [TensorPlan(name, stored.dtype(parts[0]), own[name].shape) for name, parts in self.parts.items()]

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    def blocks(self, tensor: TensorPlan) -> Iterator[Tensor]:
        """The values in order."""
        if self.parts[tensor.name] == (tensor.name,):
            return blocks(self.weights, tensor.name, BLOCK_BYTES)
        return iter([joined(self.model, tensor.name, tensor.shape, self._whole)])

    def report(self) -> dict[str, Any]:
        """What `rlx merge --reverse --json` prints."""
        return {
            "out": str(self.out),
            "tensors": len(self.parts),
            "bytes": self.bytes,
            "dtype": str(main_dtype(self.tensors)).removeprefix("torch."),
            "step": 0,
            "role": self.role,
            "reverse": True,
        }

    def _whole(self, name: str) -> Tensor:
        shape = self.weights.shape(name)
        return self.weights.rows(name, 0, shape[0] if shape else 1)


def plan_reverse(
    source: Folder | str, out: Path | str, role: str = "actor", trust_remote_code: bool = False
) -> ReversePlan:
    """Checks target, files, names and shapes. Nothing is written.

    Args:
        source: a Hugging Face folder with its weights in safetensors files, or the URL of one, which is copied to this
            machine.
        out: folder to make; `<run>/checkpoints/global_step_0` is where a run looks for it.
        role: which of the run's models it is to be: actor, or critic or reward_model for a token classifier.
        trust_remote_code: whether the model's own code, where it has some, may run.

    Raises UserError naming what is missing, cut, unknown or of another shape than config.json says, RunError where
    there is no room for the copy.
    """
    source, out = folder_of(source), Path(out).expanduser()
    check_target(out)
    with before_the_start():
        if not source.is_dir() or not (source / "config.json").is_file():
            raise UserError(
                f"{source} holds no config.json", "name a Hugging Face folder with a model's config and weights"
            )
        require_trusted_code(source, trust_remote_code)
    folder = fetched_model(source) if isinstance(source, ObjectPath) else source
    weights, model = ModelFolder(folder), architecture(folder, role)
    names = set(checked_names(weights, model, folder))
    own = layout(model, {name: tensor.shape for name, tensor in model.state_dict().items()})
    parts = {name: (name,) if name in names else tuple(stored) for name, stored in own.items()}
    there = {name: stored for name, stored in parts.items() if names.issuperset(stored)}
    return ReversePlan(folder, out, role, model, weights, there)


def reverse(
    plan: ReversePlan, progress: Callable[[int], None] | None = None, max_file_bytes: int = MAX_FILE_BYTES
) -> None:
    """Writes the checkpoint under a temporary name, reads every value back, and moves it to its place.

    Raises RunError when the disk has too little room; the target then does not exist.
    """
    with new_folder(plan.out, plan.bytes) as folder:
        role = folder / plan.role
        (role / "weights").mkdir(parents=True)
        for name, tensors in file_plan(plan.tensors, max_file_bytes).items():
            write_file(role / "weights" / name, tensors, plan.blocks, progress)
        save_huggingface_files(role, plan.folder, code=bool(model_code(plan.folder)))
        engine = {"format": FORMAT, "world_size": 1, "scalars": _FRESH}
        (role / ENGINE).write_text(json.dumps(engine, indent=1) + "\n", encoding="utf-8")
        _read_back(plan, Shards(role / "weights"))
        write_manifest(folder, step=0, serial=1)


def _read_back(plan: ReversePlan, written: Shards) -> None:
    for tensor in plan.tensors:
        row = 0
        for block in plan.blocks(tensor):
            last = row + (len(block) if block.dim() else 1)
            if not same_bytes(written.rows(tensor.name, row, last), block):
                raise RunError(f"{plan.out}: {tensor.name} does not read back as written", "try another disk")
            row = last
