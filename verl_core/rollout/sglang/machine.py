"""What the machine must have for an engine: looked at before SGLang takes its time."""

from __future__ import annotations

import importlib.util
import os

import torch

from verl_core.config.errors import EnvError, MachineError
from verl_core.rollout.sglang.options import SglangOptions

_LARGEST_SHARE = 0.95  # of what is free: activations and CUDA graphs need the rest


def set_variables() -> None:
    """SGLang reads these when it is imported. One that is set already stays."""
    variables = {
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # by the two tokens that `context_length` adds
    }
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def check_package() -> None:
    """Raises EnvError where this environment has no SGLang."""
    if importlib.util.find_spec("sglang") is None:
        what = "rollout.engine=sglang: the package sglang is not in this environment"
        raise EnvError(what, "rlx env sync --engine sglang")


def check_gpu() -> None:
    """Raises MachineError where there is no CUDA GPU: the kernels of SGLang's package are for nothing else."""
    if not torch.cuda.is_available():
        raise MachineError("rollout.engine=sglang needs a CUDA GPU, and there is none", "rollout.engine=hf")


def memory_share(options: SglangOptions) -> float:
    """The GPU's share for weights and cache, in SGLang's measure: of the memory that is free.

    Raises:
        MachineError: a GPU has less free memory than the engine would take, or there are too few GPUs.
    """
    wanted = options.tensor_parallel_size
    if wanted > (count := torch.cuda.device_count()):
        raise MachineError(
            f"rollout.tensor_model_parallel_size={wanted}, but {count} GPUs are visible",
            "lower it, or look at CUDA_VISIBLE_DEVICES",
        )
    shares = list[float]()
    for index in range(wanted):
        # Asked of the driver: a look through CUDA would take half a gigabyte on each GPU for its context.
        used, total = torch.cuda.device_memory_used(index), torch.cuda.get_device_properties(index).total_memory
        need, free = options.gpu_memory_utilization * total, total - used
        if need > _LARGEST_SHARE * free:
            raise MachineError(
                f"GPU {index} has {free / 2**30:.1f} of {total / 2**30:.1f} GiB free, {used / 2**30:.1f} are used; "
                f"the engine would take {need / 2**30:.1f} and needs some for activations",
                "end what uses the GPU (nvidia-smi names it), or lower rollout.gpu_memory_utilization",
            )
        shares.append(need / free)
    return min(shares)
