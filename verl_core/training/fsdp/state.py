"""An engine's state under names a checkpoint can keep, and back, whatever the placement of the tensors was."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from verl_core.config.errors import UserError
from verl_core.models.misfits import misfits
from verl_core.training.fsdp.host_adamw import HostAdamW
from verl_core.training.fsdp.shard import copy_into, local


def check_names(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raises UserError naming the parameters that are missing, unknown or of another shape."""
    if wrong := misfits(own, given):
        raise UserError(
            f"the state is not this model's: {wrong}",
            hint="resume with the model.path and model.override_config the checkpoint was written with",
        )


def optimizer_tensors(optimizers: list[Optimizer], names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """Optimizer state as "<state key>/<parameter name>", without the step counters (see `optimizer_steps`)."""
    return {
        f"{key}/{names[p]}": _readable(p, value)
        for o in optimizers
        for p, entry in o.state.items()
        for key, value in entry.items()
        if key != "step"
    }


def optimizer_steps(optimizers: list[Optimizer], names: Mapping[Tensor, str]) -> dict[str, int]:
    """AdamW's step counters by parameter name."""
    return {names[p]: int(e["step"]) for o in optimizers for p, e in o.state.items() if "step" in e}


def _readable(p: Tensor, value: Tensor) -> Tensor:
    """8-bit state as float32 in host memory, placed as the parameter is, so that any number of ranks reads it (then
    rounded to 8 bits once more); other state as it is."""
    if not hasattr(piece := local(value), "dequantize") or not hasattr(piece, "codes"):
        return value
    plain = torch.empty_like(p, dtype=torch.float32, device="cpu", requires_grad=False)
    local(plain).copy_(piece.dequantize())
    return plain


def _blank(optimizer: Optimizer, p: Tensor, key: str, dtype: torch.dtype) -> Tensor:
    """Room for a piece of state as the optimizer keeps it."""
    if isinstance(optimizer, HostAdamW):
        return torch.empty_like(p, dtype=dtype, device="cpu", requires_grad=False)
    if hasattr(optimizer, "_new_buffer"):  # torchao's 8-bit AdamW
        return optimizer._new_buffer(p.detach(), signed=key == "exp_avg")
    return torch.empty_like(p, dtype=dtype, requires_grad=False)


def load_optimizers(
    optimizers: list[Optimizer], names: Mapping[Tensor, str], tensors: Mapping[str, Tensor], steps: Mapping[str, int]
) -> None:
    """The inverse of the two above. Raises UserError for state of parameters that no optimizer here has."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for key_name, value in tensors.items():
        key, name = key_name.split("/", 1)
        by_name.setdefault(name, {})[key] = value
    for optimizer in optimizers:
        optimizer.state.clear()
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            for key, value in by_name.pop(names[p], {}).items():
                optimizer.state[p][key] = _blank(optimizer, p, key, value.dtype)
                copy_into(optimizer.state[p][key], value)
            if names[p] in steps:  # float32 on the parameter's device is what fused AdamW keeps
                place = p.device if type(optimizer) is AdamW else "cpu"
                optimizer.state[p]["step"] = torch.tensor(float(steps[names[p]]), dtype=torch.float32, device=place)
    if by_name:
        raise UserError(
            f"the state has optimizer entries of unknown parameters, e.g. {min(by_name)}",
            hint="resume with the optim.optimizer the checkpoint was written with",
        )
