"""What runs in a SGLang scheduler's process: SGLang's own, with our sampler."""

from __future__ import annotations

from typing import Any


def run_scheduler(*args: Any, **named: Any) -> Any:
    """`sglang.srt.managers.scheduler.run_scheduler_process`, whose arguments these are."""
    from sglang.srt.managers.scheduler import run_scheduler_process

    from verl_core.rollout.sglang.sampler import install

    install()
    return run_scheduler_process(*args, **named)
