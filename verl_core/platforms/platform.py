"""One process's device: a CPU, or one GPU (CUDA, or ROCm, which torch also calls cuda)."""

from __future__ import annotations

import os
import platform as host
import random
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from verl_core.config.errors import MachineError

GIB = 1024**3


@dataclass(frozen=True)
class Memory:
    """Bytes of a device that this process holds."""

    allocated: int
    """Of living tensors; of a CPU process all resident memory."""
    peak: int
    """The most of it since the last `reset_peak`."""
    reserved: int
    """With what is kept for later tensors."""
    peak_reserved: int


@dataclass(frozen=True)
class Platform:
    """The device of one rank and what follows from it. Made by `current`."""

    name: Literal["cpu", "cuda"]
    device: torch.device  # of this rank, e.g. cuda:3
    comm_backend: Literal["gloo", "nccl"]  # of torch.distributed
    compute_dtype: torch.dtype  # of forward and backward unless the configuration names one
    hardware: str  # for people: "NVIDIA H200", "AMD EPYC 9R14"

    def set_device(self, local_rank: int | None = None) -> None:
        """Makes GPU `local_rank` (None: this platform's) the current one. Call once, before the process group is
        made."""
        if self.name == "cuda":
            torch.cuda.set_device(self.device if local_rank is None else local_rank)

    def synchronize(self) -> None:
        """Waits until the device has finished all queued work, so that a clock read afterwards is true."""
        if self.name == "cuda":
            torch.cuda.synchronize(self.device)

    def memory(self) -> Memory:
        """What this process holds now. Asks the allocator or the kernel; the host does not wait for the device."""
        if self.name == "cuda":
            stats = torch.cuda.memory_stats(self.device)
            kinds = ("allocated_bytes.all.", "reserved_bytes.all.")
            return Memory(*(stats.get(kind + which, 0) for kind in kinds for which in ("current", "peak")))
        try:
            lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            resident, peak = (int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        except (OSError, KeyError):  # no such files: macOS
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            resident = peak = most * (1 if sys.platform == "darwin" else 1024)
        return Memory(resident, peak, resident, peak)

    def memory_bytes(self) -> int:
        """Memory of the device: the GPU's, or the machine's."""
        if self.name == "cuda":
            return torch.cuda.get_device_properties(self.device).total_memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def reset_peak(self) -> None:
        """Starts a new measurement of the peak; of a CPU process only where Linux lets it."""
        if self.name == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # proc(5): VmHWM starts again from VmRSS

    def empty_cache(self) -> None:
        """Gives cached device memory back, for another process on the same device."""
        if self.name == "cuda":
            torch.cuda.empty_cache()

    def seed_all(self, seed: int) -> None:
        """Seeds Python, NumPy and torch on every device of this process."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)

    def set_deterministic(self, on: bool = True) -> None:
        """Asks every library for deterministic kernels (or stops asking). Set before the first GPU matrix product."""
        torch.use_deterministic_algorithms(on)
        if self.name == "cuda":
            torch.backends.cudnn.benchmark = not on
            if on:  # cuBLAS is deterministic only with a fixed workspace
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def set_threads(self, n: int | None) -> None:
        """Sets torch's compute threads. None: one. OpenMP pools that share cores slow each other many times over, and
        beside a GPU a pool that is waited for at every small operation keeps the GPU waiting too."""
        torch.set_num_threads(n or 1)


def current(device: Literal["auto", "cpu", "cuda"] = "auto", local_rank: int | None = None) -> Platform:
    """The platform of this process.

    `device` is trainer.device; auto takes a GPU when there is one. `local_rank` counts the ranks of this machine (None:
    the environment's LOCAL_RANK, else 0). Raises MachineError when a GPU is asked for and absent.
    """
    gpus = torch.cuda.device_count()
    if device == "cpu" or (device == "auto" and gpus == 0):
        return Platform("cpu", torch.device("cpu"), "gloo", torch.float32, _cpu_name())
    rank = int(os.environ.get("LOCAL_RANK", "0")) if local_rank is None else local_rank
    if rank >= gpus:
        raise MachineError(
            f"trainer.device={device}: rank {rank} of this machine needs GPU {rank}, torch sees {gpus} GPUs",
            hint="check nvidia-smi and CUDA_VISIBLE_DEVICES, lower cluster.n_gpus_per_node, or set trainer.device=cpu",
        )
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return Platform(
        name="cuda",
        device=torch.device("cuda", rank),
        comm_backend="nccl",
        compute_dtype=torch.bfloat16 if bf16 else torch.float32,
        hardware=torch.cuda.get_device_name(rank),
    )


def _cpu_name() -> str:
    """The processor's name as the kernel gives it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return host.processor() or host.machine()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, host.machine())
