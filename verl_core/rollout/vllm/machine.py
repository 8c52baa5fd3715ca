"""What the machine must have for an engine: looked at before vLLM takes its time."""

from __future__ import annotations

import importlib.util
import os

import torch

from verl_core.config.errors import EnvError, MachineError, UserError
from verl_core.rollout.vllm.options import VllmOptions

_CPU_CACHE = 2**30  # bytes


def set_variables(options: VllmOptions) -> None:
    """vLLM reads these when it is imported. One that is set already stays."""
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core lives in this process: no token is pickled
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several engines and a trainer share the cores
        "VLLM_BATCH_INVARIANT": str(int(options.deterministic and torch.cuda.is_available())),
    }
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def check_package() -> None:
    """Raises EnvError where this environment has no vLLM."""
    if importlib.util.find_spec("vllm") is None:
        raise EnvError("rollout.engine=vllm: the package vllm is not in this environment", "rlx env sync --engine vllm")


def check_memory(options: VllmOptions) -> None:
    """Raises MachineError where a GPU has less free memory than the engine would take, or there are too few GPUs."""
    if not torch.cuda.is_available():
        return
    wanted = options.tensor_parallel_size
    if wanted > (count := torch.cuda.device_count()):
        raise MachineError(
            f"rollout.tensor_model_parallel_size={wanted}, but {count} GPUs are visible",
            "lower it, or look at CUDA_VISIBLE_DEVICES",
        )
    for index in range(wanted):
        # Asked of the driver: a look through CUDA would take half a gigabyte on each GPU for its context.
        used, total = torch.cuda.device_memory_used(index), torch.cuda.get_device_properties(index).total_memory
        need = options.kv_cache_bytes or int(options.gpu_memory_utilization * total)
        if need > total - used:
            raise MachineError(
                f"GPU {index} has {(total - used) / 2**30:.1f} of {total / 2**30:.1f} GiB free, "
                f"{used / 2**30:.1f} are used; the engine would take {need / 2**30:.1f}",
                "end what uses the GPU (nvidia-smi names it), or lower rollout.gpu_memory_utilization",
            )


def check_head_size(options: VllmOptions) -> None:
    """Raises UserError where vLLM's attention on the CPU lacks the model's head size. Imports vLLM."""
    if torch.cuda.is_available():
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    config = options.model_json()
    text = config.get("text_config", config)
    size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if size not in sizes:
        raise UserError(
            f"the model's heads have {size} dimensions; on the CPU vllm knows {', '.join(map(str, sizes))}",
            "rollout.engine=hf",
        )


def cache_bytes(options: VllmOptions) -> int | None:
    """Bytes of cache that are asked for; None: what the GPU's share leaves beside the weights."""
    return options.kv_cache_bytes or (None if torch.cuda.is_available() else _CPU_CACHE)
