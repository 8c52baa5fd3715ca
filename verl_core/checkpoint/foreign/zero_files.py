"""The files of a DeepSpeed checkpoint with ZeRO: `*_model_states.pt` and `*_optim_states.pt` of every rank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_core.checkpoint.foreign.restricted_pickle import Allowed, Function, record
from verl_core.checkpoint.foreign.torch_file import TorchFile
from verl_core.config.errors import UserError

_FILE = re.compile(r"((?:bf16_|fp16_)?)(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_(model|optim)_states\.pt")
_SET = Function(lambda items=(): tuple(items))
_ALLOWED: Allowed = {
    ("builtins", "set"): _SET,
    ("__builtin__", "set"): _SET,
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"): record("LossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"): record("DynamicLossScaler"),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"): Function(int),
    ("deepspeed.utils.tensor_fragment", "fragment_address"): record("FragmentAddress"),
}


def holds_files(folder: Path) -> bool:
    """Whether DeepSpeed wrote there."""
    return folder.is_dir() and any(_FILE.fullmatch(path.name) for path in folder.iterdir())


class ZeroFiles:
    """The files below `folder`, a `global_stepN`. Once `faults` is empty, the rest may be used."""

    def __init__(self, folder: Path):
        self._opened: dict[Path, Mapping[str, Any]] = {}
        self._paths: dict[str, dict[int, Path]] = {"model": {}, "optim": {}}
        self._split_models = False
        self._dtype_prefix = ""
        for path in sorted(folder.iterdir()):
            if (match := _FILE.fullmatch(path.name)) and path.is_file():
                self._paths[match[4]][int(match[2] or 0)] = path
                self._split_models |= int(match[3]) > 0
                self._dtype_prefix = self._dtype_prefix or match[1]

    @property
    def stage(self) -> int:
        """Of ZeRO: 1, 2 or 3."""
        return self._settings(0)[0]

    @property
    def ranks(self) -> int:
        """How many share the optimizer's state."""
        return self._settings(0)[1]

    def model(self, rank: int) -> Mapping[str, Any]:
        """What is in a rank's file of the model; with stages 1 and 2 there is only that of rank 0."""
        return self._value(self._paths["model"][rank])

    def optimizer(self, rank: int) -> Mapping[str, Any]:
        """The state of a rank's optimizer."""
        return self._value(self._paths["optim"][rank])["optimizer_state_dict"]

    def optimizer_name(self, rank: int) -> str:
        return self._paths["optim"][rank].name

    def faults(self) -> list[str]:
        """Missing, cut and contradicting files."""
        if self._split_models:
            return ["it is split by model parallelism (mp_rank_01 and higher); how is not told"]
        broken = {
            path: fault
            for paths in self._paths.values()
            for path in paths.values()
            if (fault := self._read_fault(path))
        }
        whole = [rank for rank, path in self._paths["optim"].items() if path not in broken]
        found = [*broken.values(), *self._missing(min(whole, default=None))]
        return found or self._contradictions()

    def _read_fault(self, path: Path) -> str | None:
        try:
            value = self._value(path)
        except UserError as error:
            return error.message.replace(str(path), path.name)
        if "model_states" in path.name:
            return None if "param_shapes" in value else f"{path.name} has no param_shapes: it is of a run without ZeRO"
        state = value.get("optimizer_state_dict")
        known = isinstance(state, dict) and {"zero_stage", "partition_count"} <= state.keys()
        return None if known else f"{path.name} is of an optimizer without ZeRO"

    def _missing(self, told_by: int | None) -> list[str]:
        """`told_by`: a rank whose optimizer can be read, which says how many there are."""
        model, optimizer = self._paths["model"], self._paths["optim"]
        if told_by is None:
            none = "zero_pp_rank_0_mp_rank_00_optim_states.pt is missing, which has the float32 weights"
            return [] if optimizer else [none]
        stage, ranks = self._settings(told_by)
        ranked = {rank: f"zero_pp_rank_{rank}_mp_rank_00" for rank in range(ranks)}
        models = ranked if stage == 3 else {0: "mp_rank_00"}
        found = [f"{name}_model_states.pt is missing" for rank, name in models.items() if rank not in model]
        return found + [
            f"{self._dtype_prefix}{name}_optim_states.pt is missing"
            for rank, name in ranked.items()
            if rank not in optimizer
        ]

    def _contradictions(self) -> list[str]:
        mine, steps = self._settings(0), {rank: self.model(rank).get("global_steps") for rank in self._paths["model"]}
        found = [
            f"{path.name} is of stage and ranks {self._settings(rank)}, that of rank 0 of {mine}"
            for rank, path in self._paths["optim"].items()
            if self._settings(rank) != mine
        ]
        found += [
            f"{path.name} is of a rank beyond the {mine[1]} that there are"
            for paths in self._paths.values()
            for rank, path in paths.items()
            if rank >= mine[1] > 0
        ]
        if len(set(steps.values())) > 1:
            found.append("its files are of several steps: " + ", ".join(f"rank {r} of {s}" for r, s in steps.items()))
        return found

    def _settings(self, rank: int) -> tuple[int, int]:
        state = self.optimizer(rank)
        count = state["partition_count"]  # with stages 1 and 2 one a group of parameters
        return int(state["zero_stage"]), max(count) if isinstance(count, list) else int(count)

    def _value(self, path: Path) -> Mapping[str, Any]:
        if path not in self._opened:
            value = TorchFile(path, _ALLOWED).value
            if not isinstance(value, dict):
                raise UserError(f"{path} holds no dictionary, so it is not of DeepSpeed")
            self._opened[path] = value
        return self._opened[path]
