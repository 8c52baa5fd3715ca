"""Makes the engine: checks first, never a minute lost on what could be known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_core.rollout.sglang.machine import check_gpu, check_package, memory_share, set_variables
from verl_core.rollout.sglang.options import SglangOptions

if TYPE_CHECKING:
    from verl_core.rollout.sglang.engine import SglangEngine


def make(**options: Any) -> SglangEngine:
    """A SGLang engine in this process, which should be its own, called in its main thread. The options are those of
    `SglangOptions`.

    Raises:
        EnvError: the package sglang is missing.
        UserError: model and options do not fit each other.
        MachineError: there is no GPU, or memory or GPUs are missing.
        ValueError: SGLang refused, for a reason that it has printed.
    """
    settings = SglangOptions(**options | {"eos_ids": tuple(options["eos_ids"])})
    check_package()
    settings.check()
    check_gpu()
    share = memory_share(settings)
    return start(settings, share)


def start(settings: SglangOptions, share: float | None) -> SglangEngine:
    """The engine after all checks. `share` as `server_words` takes it."""
    set_variables()
    from verl_core.rollout.sglang.engine import SglangEngine

    try:
        return SglangEngine(settings, share)
    except RuntimeError as error:  # the scheduler's process prints the reason; ChildEngine shows it with a ValueError
        raise ValueError(f"sglang does not start: {error}") from error
