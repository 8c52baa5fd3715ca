"""Makes the engine: checks first, what vLLM says in one line, never a minute lost on what could be known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_core.config import garbage
from verl_core.config.errors import MachineError, RlxError, UserError
from verl_core.rollout.vllm.machine import check_head_size, check_memory, check_package, set_variables
from verl_core.rollout.vllm.options import VllmOptions

if TYPE_CHECKING:
    from verl_core.rollout.vllm.engine import VllmEngine


def make(**options: Any) -> VllmEngine:
    """A vLLM engine in this process, which should be its own. The options are those of `VllmOptions`.

    Raises:
        EnvError: the package vllm is missing.
        UserError: model and options do not fit each other.
        MachineError: memory or GPUs are missing.
    """
    settings = VllmOptions(**options | {"eos_ids": tuple(options["eos_ids"])})
    check_package()
    settings.check()
    check_memory(settings)
    set_variables(settings)
    check_head_size(settings)
    garbage.look_seldom()
    from verl_core.rollout.vllm.engine import VllmEngine

    garbage.look_as_usual()
    try:
        return VllmEngine(settings)
    except RlxError:
        raise
    except Exception as error:
        raise _in_a_line(error) from error


def _in_a_line(error: Exception) -> RlxError:
    """vLLM's refusal as one of our errors."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if "memory" in str(error).lower() or "KV cache" in str(error):
        return MachineError(
            f"vllm does not fit: {text}",
            "change rollout.gpu_memory_utilization, or lower rollout.max_model_len or rollout.max_num_seqs",
        )
    return UserError(f"vllm does not start: {text}", "rollout.engine=hf runs every causal language model")
