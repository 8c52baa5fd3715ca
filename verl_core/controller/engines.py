"""The rollout engine of a rank, and how it gets the trainer's weights: hf in the trainer's process, which is handed the
tensors; vLLM in a process of its own on the same device, through memory that both see."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from verl_core.config.schema import RlxConfig
from verl_core.models.pretrained import eos_ids, load_generation_config, load_hf_config, load_tokenizer
from verl_core.platforms import Platform
from verl_core.rollout.protocol import RolloutEngine
from verl_core.training.protocol import TrainEngine

CHILDREN = {"vllm": "verl_core.rollout.vllm:make"}
"""Factories of the engines that run in a process of their own."""


class Seat(Protocol):
    """An engine and its way to new weights."""

    @property
    def engine(self) -> RolloutEngine: ...

    def push(self, trainer: TrainEngine, version: int) -> None:
        """Gives the engine the trainer's present weights as `version`. Called on all ranks of the trainer."""
        ...

    def trim(self) -> None:
        """Gives back what a generation larger than the others has left behind."""
        ...

    def close(self) -> None: ...


def make_seat(config: RlxConfig, platform: Platform, model_folder: str, dtype: torch.dtype) -> Seat:
    """The engine that an effective configuration names. Raises EnvError, UserError or MachineError when it cannot
    start."""
    tokenizer = load_tokenizer(config.model, model_folder)
    hf_config = load_hf_config(config.model, model_folder)
    ends = eos_ids(tokenizer, load_generation_config(model_folder), hf_config)
    longest = config.rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
    if config.rollout.engine == "hf":
        return InProcess(config, platform, dtype, hf_config, tokenizer, ends, longest)
    return InChild(config, platform, dtype, model_folder, ends, longest)


class InProcess:
    def __init__(
        self, config: RlxConfig, platform: Platform, dtype: torch.dtype, hf_config: Any, tokenizer: Any,
        ends: tuple[int, ...], longest: int,
    ):  # fmt: skip
        from verl_core.rollout.hf import HfEngine

        self.engine: RolloutEngine = HfEngine(
            hf_config,
            tokenizer,
            device=platform.device,
            dtype=dtype,
            max_num_seqs=config.rollout.max_num_seqs,
            max_model_len=longest,
            eos_ids=ends,
        )

    def push(self, trainer: TrainEngine, version: int) -> None:
        from verl_core.weights import inplace

        inplace.push(trainer, self.engine, version)

    def trim(self) -> None:
        self.engine.sleep()
        self.engine.wake()

    def close(self) -> None:
        """Ends with the process."""


class InChild:
    def __init__(
        self, config: RlxConfig, platform: Platform, dtype: torch.dtype, model_folder: str, ends: tuple[int, ...],
        longest: int,
    ):  # fmt: skip
        from verl_core.rollout.child import ChildEngine
        from verl_core.weights.ipc import IpcSender

        r = config.rollout
        options = {
            "model": model_folder,
            "eos_ids": sorted(ends),
            "max_model_len": longest,
            "dtype": str(dtype).removeprefix("torch."),
            "tensor_parallel_size": r.tensor_model_parallel_size,
            "gpu_memory_utilization": r.gpu_memory_utilization,
            "max_num_seqs": r.max_num_seqs,
            "max_num_batched_tokens": r.max_num_batched_tokens,
            "enforce_eager": r.enforce_eager,
            "seed": config.trainer.seed % 2**32,
            "enable_sleep": True,
            "sleep_level": 2,  # every wake comes with new weights
            "load_format": "dummy",
            "deterministic": config.trainer.deterministic,
            "trust_remote_code": config.model.trust_remote_code,
        }
        device = platform.device
        self.engine: ChildEngine = ChildEngine(
            "verl_core.weights.child:make",
            {"factory": CHILDREN[r.engine], "options": options, "device": str(device)},
            stall_s=r.stall_s,
        )
        try:
            self._sender = IpcSender(self.engine.call, device=device, dtype=dtype)
        except BaseException:
            self.engine.close()
            raise

    def push(self, trainer: TrainEngine, version: int) -> None:
        self._sender.send(trainer, version)

    def trim(self) -> None:
        """Its cache has one size from start to end."""

    def close(self) -> None:
        self._sender.close()
        self.engine.close()
