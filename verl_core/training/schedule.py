"""Courses of the learning rate, as pure functions of the number of optimizer steps taken."""

from __future__ import annotations

import math

from verl_core.config.schema import OptimConfig


def warmup_steps(optim: OptimConfig, total_steps: int, per_training_step: int = 1) -> int:
    """Optimizer steps of linear warm-up: those of lr_warmup_steps training steps, or the share lr_warmup_steps_ratio of
    all when that is -1."""
    if optim.lr_warmup_steps >= 0:
        return optim.lr_warmup_steps * per_training_step
    return int(optim.lr_warmup_steps_ratio * total_steps)


def factor(optim: OptimConfig, step: int, total_steps: int, per_training_step: int = 1) -> float:
    """What lr is multiplied by in optimizer step `step` (the first is 0) of `total_steps`.

    Warm-up rises as (step + 1) / warmup, so that its last step runs at lr. Then: constant; or from 1 down to
    min_lr_ratio at the last step, along half a cosine (arXiv 1608.03983) or a straight line."""
    warmup = warmup_steps(optim, total_steps, per_training_step)
    if step < warmup:
        return (step + 1) / warmup
    if optim.lr_scheduler_type == "constant":
        return 1.0
    done = min(1.0, (step - warmup) / max(1, total_steps - 1 - warmup))
    fall = 0.5 * (1 + math.cos(math.pi * done)) if optim.lr_scheduler_type == "cosine" else 1 - done
    return optim.min_lr_ratio + (1 - optim.min_lr_ratio) * fall
