"""Running out of memory is the run's failure, not a fault of rlx: it is told with where it was, what was held, and the
changes that would make room."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from verl_core.config.errors import RunError, UserError
from verl_core.config.schema import RlxConfig

if TYPE_CHECKING:
    from verl_core.platforms import Platform

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_USUAL = "lower actor.ppo_micro_batch_size_per_gpu, rollout.max_num_seqs, data.max_response_length or rollout.n"
_PLANNED: dict[str, tuple[str, ...] | str] = {  # what its names in plans begin with
    "rollout": "rollout",
    "old_log_prob": "actor log-prob",
    "ref": "ref log-prob",
    "values": "critic values",
    "teacher": "teacher_",
    "reward_model": ("reward_model log-prob", "reward_model ref log-prob", "reward model scores"),
    "update_actor": "actor update",
    "update_critic": "critic update",
    "update_reward_model": "reward_model update",
    "push": "actor sync",
    "checkpoint": "actor checkpoint",
}


class OutOfMemory(RunError):
    """A device or the machine had no more memory."""

    def __init__(self, message: str, hint: str | None = None, phase: str | None = None):
        super().__init__(message, hint)
        self.phase = phase

    def __reduce__(self):
        return (type(self), (self.message, self.hint, self.phase))


def out_of_memory(
    error: BaseException, phase: str | None = None, rank: int = 0, platform: Platform | None = None
) -> OutOfMemory | None:
    """What a person is told when `error` means that memory ran out, else None. `platform` is the one it ran out on,
    asked while what was allocated is still there."""
    from verl_core.platforms.ran_out import ran_out  # here: until a job listens to Ctrl-C it loads nothing that is slow

    if not ran_out(error):
        return None
    text = " ".join(str(error).split())
    if phase is None or platform is None:
        return OutOfMemory(f"out of memory: {text[:160] or type(error).__name__}", _USUAL)
    asked = _ASKED.search(text)
    parts = [f"{_size(float(asked[1]) * _UNITS[asked[2]])} asked for"] if asked else []
    held = platform.memory()
    parts.append(f"{_size(held.allocated)} allocated")
    if platform.name != "cpu":
        parts.append(f"{_size(held.reserved)} reserved")
    where = f"out of memory in {phase} on rank {rank}"
    return OutOfMemory(f"{where}: {', '.join(parts)}, of {_size(platform.memory_bytes())}", _USUAL, phase)


def changes_that_help(config: RlxConfig, phase: str | None) -> str | None:
    """Up to three changes by the plan of a configuration (as asked for) that ran out of memory in `phase`: what makes
    it fit, or what lowers that phase where it fits by the plan already. None for a model that plans do not know, and
    where no change helps."""
    from verl_core.planning.advice import advise, relieve
    from verl_core.planning.plan import effective, gpu_for, planned, shapes_of

    try:
        gpu, _ = gpu_for(config, None)
        first, shapes = planned(config, gpu), shapes_of(effective(config))
    except UserError:
        return None
    names = _PLANNED.get(phase or "", ())
    where = max(
        (one for one in first.phases if one.name.startswith(names)), key=lambda one: one.memory.total, default=None
    )
    found = relieve(config, shapes, gpu, first, where.name) if where else []
    found = found or advise(config, shapes, gpu, first)
    changes = [f"{one.words} ({one.phase} {_size(one.peak)} by the plan)" for one in found]
    return f"try {', or '.join(changes)}; see `rlx plan`" if changes else None


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**27 else f"{n_bytes / 2**20:.2f} MiB"
