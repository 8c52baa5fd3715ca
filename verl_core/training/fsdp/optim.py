"""Optimizers by configuration: which parameter is trained by which, and the learning rates of a step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Muon, Optimizer

from verl_core.config.errors import EnvError
from verl_core.config.schema import OptimConfig
from verl_core.training.fsdp.division import by_mesh, norm_over_meshes
from verl_core.training.fsdp.host_adamw import HostAdamW
from verl_core.training.fsdp.shard import decoder_layers, full, local
from verl_core.training.schedule import factor


def build_optimizers(network: nn.Module, optim: OptimConfig) -> list[Optimizer]:
    """AdamW (fused, decoupled decay) on every parameter that is trained, or the kind of it that `optimizer` names; with
    muon, torch's Muon on the 2-D matrices of the decoder layers and AdamW on the rest. Every group remembers its peak
    rate as `peak_lr`."""
    trained = [p for p in network.parameters() if p.requires_grad]
    matrices = [p for p in decoder_layers(network).parameters() if p.ndim == 2 and p.requires_grad]
    if optim.optimizer != "muon":
        matrices = []
    matrix_ids = {id(p) for p in matrices}
    rest = [p for p in trained if id(p) not in matrix_ids]
    optimizers: list[Optimizer] = []
    if matrices:
        optimizers.append(
            Muon(matrices, lr=optim.muon_lr, momentum=optim.muon_momentum, weight_decay=optim.weight_decay)
        )
    if rest:
        optimizers.append(_adamw(rest, optim))
    for group in (g for o in optimizers for g in o.param_groups):
        group["peak_lr"] = float(group["lr"])
    return optimizers


def _adamw(parameters: list[nn.Parameter], optim: OptimConfig) -> Optimizer:
    options: dict[str, Any] = {
        "lr": optim.lr, "betas": optim.betas, "eps": optim.eps, "weight_decay": optim.weight_decay
    }  # fmt: skip
    if optim.optimizer == "adamw_host":
        return HostAdamW(parameters, **options)
    if optim.optimizer == "adamw_8bit":
        try:
            from torchao.optim import AdamW8bit
        except ImportError as error:
            raise EnvError("optim.optimizer=adamw_8bit needs the package torchao", "pip install torchao") from error
        return AdamW8bit(parameters, **options)
    return AdamW([{"params": group} for group in by_mesh(parameters)], fused=True, **options)


def needs_total_steps(optim: OptimConfig) -> bool:
    """Whether the learning rate depends on how many optimizer steps there will be."""
    by_ratio = optim.lr_warmup_steps < 0 and optim.lr_warmup_steps_ratio > 0
    return by_ratio or optim.lr_scheduler_type != "constant"


def set_learning_rates(
    optimizers: list[Optimizer], optim: OptimConfig, step: int, total_steps: int, per_training_step: int
) -> None:
    """The rates of optimizer step `step` (from 0) of `total_steps`."""
    scale = factor(optim, step, total_steps, per_training_step)
    for group in (g for o in optimizers for g in o.param_groups):
        rate = group["peak_lr"] * scale
        if isinstance(group["lr"], Tensor):  # the 8-bit optimizer's, whose step is compiled
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def clip_and_step(network: nn.Module, optimizers: list[Optimizer], max_norm: float) -> float:
    """Scales all gradients so that their global 2-norm is at most `max_norm`, and takes a step; returns the norm
    before. Where it is not finite, parameters and optimizer state stay as they are."""
    grads = [p.grad for p in network.parameters() if p.grad is not None]
    total = _total_norm(grads)
    if not any(isinstance(g, DTensor) for g in grads) and all(type(o) is AdamW for o in optimizers):
        return _step_on_device(optimizers, total, max_norm)
    norm = float(total)
    if not math.isfinite(norm):
        return norm
    if norm > max_norm:  # divided, as the fused step does: the same bits
        torch._foreach_div_([local(g) for g in grads], total / max_norm)
    for optimizer in optimizers:
        optimizer.step()
    return norm


def _total_norm(grads: list[Tensor]) -> Tensor:
    """The 2-norm of all of them, wherever their pieces are; in float32, also of gradients in half precision."""
    groups = by_mesh(grads)
    total = full(nn.utils.get_total_norm(grads)) if len(groups) < 2 else norm_over_meshes(groups)
    return total.float()


def _step_on_device(optimizers: list[Optimizer], total: Tensor, max_norm: float) -> float:
    """The host does not wait for the norm before it starts the step: fused AdamW divides gradients by `grad_scale`
    and does nothing where `found_inf`, as it does for torch's GradScaler."""
    finite = total.isfinite()
    for optimizer in optimizers:
        optimizer.grad_scale = torch.where(finite, total / max_norm, 1.0).clamp(min=1.0)  # type: ignore[attr-defined]
        optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
    return float(total)
