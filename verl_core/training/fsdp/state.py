"""An engine's state under names a checkpoint can keep, and back, whatever the placement of the tensors was."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from verl_core.config.errors import UserError


def check_names(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raises UserError naming the parameters that are missing, unknown or of another shape."""
    wrong = [f"{n} is missing" for n in own.keys() - given.keys()] + [
        f"{n} is unknown" for n in given.keys() - own.keys()
    ]
    for name in own.keys() & given.keys():
        if own[name].shape != given[name].shape:
            wrong.append(f"{name} has shape {list(given[name].shape)}, not {list(own[name].shape)}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise UserError(
            f"the state is not this model's: {'; '.join(sorted(wrong)[:3])}{more}",
            hint="resume with the model.path and model.override_config the checkpoint was written with",
        )


@torch.no_grad()
def copy_into(target: Tensor, value: Tensor) -> None:
    """Copies between tensors of any placement; a plain `value` holds the whole tensor on every rank."""
    if not isinstance(target, DTensor):
        target.copy_(value.full_tensor() if isinstance(value, DTensor) else value)
        return
    mesh, placements = target.device_mesh, target.placements
    if not (isinstance(value, DTensor) and value.device_mesh == mesh and value.placements == placements):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        value = distribute_tensor(whole.to(target.device), mesh, placements, src_data_rank=None)
    target.to_local().copy_(value.to_local())


def optimizer_tensors(optimizers: list[Optimizer], names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """Optimizer state as "<state key>/<parameter name>", without the step counters (see `optimizer_steps`)."""
    return {
        f"{key}/{names[p]}": value
        for o in optimizers
        for p, entry in o.state.items()
        for key, value in entry.items()
        if key != "step"
    }


def optimizer_steps(optimizers: list[Optimizer], names: Mapping[Tensor, str]) -> dict[str, int]:
    """AdamW's step counters by parameter name."""
    return {names[p]: int(e["step"]) for o in optimizers for p, e in o.state.items() if "step" in e}


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
                optimizer.state[p][key] = torch.empty_like(p, dtype=value.dtype, requires_grad=False)
                copy_into(optimizer.state[p][key], value)
            if names[p] in steps:  # float32 on the parameter's device is what fused AdamW keeps
                optimizer.state[p]["step"] = torch.tensor(float(steps[names[p]]), dtype=torch.float32, device=p.device)
    if by_name:
        raise UserError(
            f"the state has optimizer entries of unknown parameters, e.g. {min(by_name)}",
            hint="resume with the optim.optimizer the checkpoint was written with",
        )
