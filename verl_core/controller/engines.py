"""The rollout engine of a rank. On the trainer's ranks it gets its weights from the rank: hf in the trainer's process,
which is handed the tensors; any other in a process of its own on the same devices, through memory that both see. On a
pool of its own every engine has a process of its own, and weights come from the other pool."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from verl_core.config.effective import engines_apart
from verl_core.config.schema import RlxConfig
from verl_core.models.pretrained import eos_ids, load_generation_config, load_hf_config, load_tokenizer
from verl_core.platforms import Platform
from verl_core.rollout.hf import HfEngine
from verl_core.rollout.protocol import RolloutEngine
from verl_core.training.protocol import TrainEngine

CHILDREN = {
    "hf": "verl_core.rollout.hf.child:make",
    "vllm": "verl_core.rollout.vllm:make",
    "sglang": "verl_core.rollout.sglang:make",
}
"""Factories of engines in a process of their own."""


class Seat(Protocol):
    """Where an engine runs."""

    @property
    def engine(self) -> RolloutEngine: ...

    def trim(self) -> None:
        """Gives back what a generation larger than the others has left behind."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class BesideTrainer(Seat, Protocol):
    """On a rank of the trainer, which gives it its weights itself."""

    def push(self, trainer: TrainEngine, version: int) -> None:
        """Gives the engine the trainer's present weights as `version`. Called on all ranks of the trainer."""
        ...


def make_seat(
    config: RlxConfig, platform: Platform, model_folder: str, dtype: torch.dtype, environment: dict[str, str],
    log: Path | None,
) -> Seat:  # fmt: skip
    """The engine that an effective configuration names.

    Args:
        environment, log: of its process, where it has one beside the trainer's: variables, and the file of what it
            prints.

    Raises:
        EnvError, UserError, MachineError: it cannot start.
    """
    tokenizer = load_tokenizer(config.model, model_folder)
    hf_config = load_hf_config(config.model, model_folder)
    ends = eos_ids(tokenizer, load_generation_config(model_folder), hf_config)
    longest = config.rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
    if engines_apart(config):
        return Apart(config, platform, dtype, model_folder, ends, longest, log)
    if config.rollout.engine == "hf":
        return InProcess(config, platform, dtype, hf_config, tokenizer, ends, longest)
    return InChild(config, platform, dtype, model_folder, ends, longest, environment, log)


class InProcess:
    """hf in the trainer's process, with the trainer's own tensors."""

    def __init__(
        self, config: RlxConfig, platform: Platform, dtype: torch.dtype, hf_config: Any, tokenizer: Any,
        ends: tuple[int, ...], longest: int,
    ):  # fmt: skip
        self._verify = config.weights.verify
        self.engine: HfEngine = HfEngine(
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

        inplace.push(trainer, self.engine, version, verify=self._verify)

    def trim(self) -> None:
        self.engine.sleep()
        self.engine.wake()

    def close(self) -> None:
        """Ends with the process."""


class InChild:
    """An engine in a process of its own on the trainer's devices, which sleeps while they are the trainer's."""

    def __init__(
        self, config: RlxConfig, platform: Platform, dtype: torch.dtype, model_folder: str, ends: tuple[int, ...],
        longest: int, environment: dict[str, str], log: Path | None,
    ):  # fmt: skip
        from verl_core.rollout.child import ChildEngine
        from verl_core.weights.ipc import IpcSender

        options = child_options(config, dtype, model_folder, ends, longest)
        device = platform.device
        self.engine: ChildEngine = ChildEngine(
            "verl_core.weights.child:make",
            {"factory": CHILDREN[config.rollout.engine], "options": options, "device": str(device)},
            env=environment,
            log=log,
            stall_s=config.rollout.stall_s,
            name=config.rollout.engine,
        )
        try:
            self._sender = IpcSender(
                self.engine.call,
                device=device,
                dtype=dtype,
                bucket_bytes=config.weights.bucket_mb * 2**20,
                verify=config.weights.verify,
            )
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


class Apart:
    """An engine on a pool of its own, always in a process of its own: `Courier` brings it the trainer's weights."""

    def __init__(
        self, config: RlxConfig, platform: Platform, dtype: torch.dtype, model_folder: str, ends: tuple[int, ...],
        longest: int, log: Path | None,
    ):  # fmt: skip
        from verl_core.rollout.child import ChildEngine

        self._hf = config.rollout.engine == "hf"
        device = str(platform.device)
        if self._hf:
            options = hf_options(config, device, dtype, model_folder, longest)
        else:
            options = child_options(config, dtype, model_folder, ends, longest)
        self.engine: ChildEngine = ChildEngine(
            "verl_core.weights.child:make",
            {"factory": CHILDREN[config.rollout.engine], "options": options, "device": device, "keeps": self._hf},
            log=log,
            stall_s=config.rollout.stall_s,
            name=config.rollout.engine,
        )

    def trim(self) -> None:
        if self._hf:
            self.engine.sleep()
            self.engine.wake()

    def close(self) -> None:
        self.engine.close()


def hf_options(config: RlxConfig, device: str, dtype: torch.dtype, model_folder: str, longest: int) -> dict[str, Any]:
    """Keyword arguments of `verl_core.rollout.hf.child.make`, as JSON: without weights."""
    return {
        "model": model_folder,
        "settings": asdict(config.model),
        "max_num_seqs": config.rollout.max_num_seqs,
        "max_model_len": longest,
        "device": device,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": config.trainer.num_threads,
        "deterministic": config.trainer.deterministic,
        "load": False,
    }


def child_options(
    config: RlxConfig, dtype: torch.dtype, model_folder: str, ends: tuple[int, ...], longest: int
) -> dict[str, Any]:
    """Keyword arguments of the factory of vLLM or SGLang, as JSON."""
    r, adapter = config.rollout, served_adapter(config)
    return {
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
        "enable_sleep": not engines_apart(config),
        # Every wake comes with new weights; but an adapter's base stays.
        "sleep_level": 2 if adapter is None else 1,
        "load_format": "dummy" if adapter is None else "auto",
        "lora_config": adapter,
        "deterministic": config.trainer.deterministic,
        "trust_remote_code": config.model.trust_remote_code,
    }


def served_adapter(config: RlxConfig) -> dict[str, Any] | None:
    """What an engine must know of an adapter whose tensors alone are sent to it; None: it is sent whole weights."""
    r, model = config.rollout, config.model
    if not (r.lora_native and r.engine == "vllm" and model.lora_rank):
        return None
    return {"r": model.lora_rank, "lora_alpha": model.lora_alpha, "target_modules": model.target_modules}
