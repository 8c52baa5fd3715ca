"""NVIDIA GPUs: the driver against the lock, what each one is, and who uses it."""

import csv
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from rlx import ui
from rlx.checkup.finding import Finding, State, Subject
from rlx.env import driver, interpreter
from rlx.env.requirements import locked_packages
from verl_core.config.effective import has_nvidia_driver
from verl_core.planning.gpus import GPUS

MIB = 1024**2
BUSY_SHARE = 0.1
"""A GPU with more than this share of its memory taken is in use by somebody."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi names it; memory in bytes, None where it has none of its own (GB10)."""

    index: str
    uuid: str
    name: str
    total: int | None
    used: int | None


def cuda_driver(subject: Subject) -> Iterator[Finding]:
    """The CUDA that the driver runs, against the lock's; RLX_PYTHON's packages may be for another one."""
    if not has_nvidia_driver():
        yield _no_gpu(subject)
        return
    found = driver.installed()
    if found is None:
        fix = "check the driver with nvidia-smi; in Docker: --gpus all"
        yield Finding("driver", "warn", "an NVIDIA driver is there, but neither libcuda nor nvidia-smi answers", fix)
        return
    runs = f"runs CUDA {found.cuda[0]}.{found.cuda[1]} ({found.source})"
    needed = None if interpreter.chosen() else driver.cuda_needed(locked_packages(subject.extras))
    if needed is None:
        yield Finding("driver", "ok", runs)
    elif driver.runs(found, needed):
        yield Finding("driver", "ok", f"{runs}, the lock is for CUDA {needed[0]}.{needed[1]}")
    else:
        state: State = "fail" if subject.uses_gpu else "warn"
        yield Finding("driver", state, driver.too_old(found, needed), driver.fix(needed))


def _no_gpu(subject: Subject) -> Finding:
    if subject.device == "cuda":
        fix = "run on a machine with one, in Docker with --gpus all, or trainer.device=cpu"
        return Finding("driver", "fail", "no NVIDIA driver, and trainer.device=cuda", fix)
    meant_for = subject.config.hardware if subject.config else ""
    if subject.uses_gpu and _names_a_gpu(meant_for):
        found = f"no NVIDIA driver: training would run on the CPU, and the profile is meant for {meant_for}"
        return Finding("driver", "warn", found, "run on a machine with one, in Docker with --gpus all")
    return Finding("driver", "ok", "no NVIDIA driver: training runs on the CPU")


def _names_a_gpu(hardware: str) -> bool:
    """Whether a profile's `hardware` is a GPU: a card that plans know, however it is spaced, or the word."""
    text = hardware.upper().replace(" ", "")
    return "GPU" in text or any(name.upper().split("-")[0] in text for name in GPUS)


def gpus(subject: Subject) -> Iterator[Finding]:
    """Each GPU, and their number against what the profile asks for."""
    if not has_nvidia_driver():
        return
    told = _query("--query-gpu=index,uuid,name,memory.total,memory.used")
    if isinstance(told, str):
        yield Finding("gpu", "fail" if subject.device == "cuda" else "warn", told, "check the driver: nvidia-smi")
        return
    present = [Gpu(row[0], row[1], row[2], _bytes(row[3]), _bytes(row[4])) for row in told if len(row) == 5]
    users = _users()
    for gpu in present:
        yield _one(gpu, users.get(gpu.uuid, []))
    yield from _count(subject, present)


def _one(gpu: Gpu, users: list[str]) -> Finding:
    memory = f"{ui.size(gpu.total)}" if gpu.total else "memory shared with the host"
    what = f"{gpu.name}, {memory}"
    if users or (gpu.total and (gpu.used or 0) > BUSY_SHARE * gpu.total):
        by = f" by {', '.join(users)}" if users else ""
        taken = f"{ui.size(gpu.used)} in use" if gpu.used else "in use"
        return Finding(
            f"gpu {gpu.index}", "warn", f"{what}, {taken}{by}", "end them, or choose with CUDA_VISIBLE_DEVICES"
        )
    return Finding(f"gpu {gpu.index}", "ok", f"{what}, free")


def _count(subject: Subject, present: list[Gpu]) -> Iterator[Finding]:
    """Fewer GPUs than ranks here is a failure; with trainer.device=auto, none at all means the CPU."""
    usable = len(visible(present))
    on_gpu = subject.device == "cuda" or (subject.device == "auto" and usable > 0)
    asked = subject.gpus_here if on_gpu else 0
    if usable < asked:
        fix = f"cluster.nproc={usable or 1}, or more machines: cluster.nnodes and cluster.n_gpus_per_node"
        yield Finding("gpus", "fail", f"{asked} asked for on this machine, {usable} to be used", fix)
    elif asked:
        yield Finding("gpus", "ok", f"{asked} asked for on this machine, {usable} to be used")


def visible(present: list[Gpu]) -> list[Gpu]:
    """The GPUs CUDA_VISIBLE_DEVICES leaves: by index or UUID, up to the first that does not exist, as CUDA reads it."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return present
    chosen = []
    for word in named.split(","):
        match = [
            gpu for gpu in present if word.strip() and (gpu.index == word.strip() or gpu.uuid.startswith(word.strip()))
        ]
        if not match:
            break
        chosen += match[:1]
    return chosen


def _users() -> dict[str, list[str]]:
    """GPU UUID -> `name (pid)` of the processes on it. Inside a container nvidia-smi may show none."""
    told = _query("--query-compute-apps=gpu_uuid,pid,process_name")
    found: dict[str, list[str]] = {}
    for row in [] if isinstance(told, str) else told:
        if len(row) == 3:
            found.setdefault(row[0], []).append(f"{os.path.basename(row[2])} ({row[1]})")  # noqa: PTH119  (may hold ::)
    return found


def _query(what: str) -> list[list[str]] | str:
    """nvidia-smi's rows, or in one line why there are none."""
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=driver.TIMEOUT_S, check=False)
    except FileNotFoundError:
        return "an NVIDIA driver is loaded, but there is no nvidia-smi"
    except (OSError, subprocess.TimeoutExpired):
        return f"nvidia-smi does not answer within {driver.TIMEOUT_S} s"
    if done.returncode:
        return f"nvidia-smi: {' '.join((done.stdout.strip() or done.stderr.strip()).split())}"
    return list(csv.reader(done.stdout.splitlines(), skipinitialspace=True))


def _bytes(mib: str) -> int | None:
    return int(mib) * MIB if mib.strip().isdecimal() else None
