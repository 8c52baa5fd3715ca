"""Running out of memory is the run's failure, not a fault of rlx: it is told with the keys that make a run smaller."""

from __future__ import annotations

import torch

from verl_core.config.errors import RunError

# How torch's CPU allocator words it; on a GPU it has a class of its own.
_CPU_TEXT = "DefaultCPUAllocator"


def out_of_memory(error: BaseException) -> RunError | None:
    """What a person is told when `error` means that memory ran out, else None."""
    on_cpu = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _CPU_TEXT in str(error))
    if not on_cpu and not isinstance(error, torch.OutOfMemoryError):
        return None
    text = " ".join(str(error).split())[:160]
    return RunError(
        f"out of memory: {text or type(error).__name__}",
        "lower actor.ppo_micro_batch_size_per_gpu, rollout.max_num_seqs, data.max_response_length or rollout.n",
    )
