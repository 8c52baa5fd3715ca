"""NCCL, which carries tensors between GPUs: its version in the lock, and what this machine gives it."""

import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlx.checkup.finding import Finding, Subject
from rlx.env import interpreter
from rlx.env.requirements import locked_packages
from verl_core.config.effective import has_nvidia_driver

SWITCHED_OFF = {
    "NCCL_P2P_DISABLE": "GPUs of one machine talk through host memory",
    "NCCL_IB_DISABLE": "machines talk over sockets, not RDMA",
    "NCCL_SHM_DISABLE": "GPUs of one machine talk over sockets where they have no peer access",
}
"""Variables that keep NCCL from the faster way."""


def nccl(subject: Subject) -> Iterator[Finding]:
    """The version, then each thing that keeps NCCL from working as it could."""
    problems = [*interface_problems(_interfaces()), *_memlock(), *_switches()]
    if not interpreter.chosen():
        versions = [
            package.version for package in locked_packages(subject.extras) if package.name.startswith("nvidia-nccl")
        ]
        if versions:
            used = "" if has_nvidia_driver() and subject.uses_gpu else ", not used on the CPU"
            yield Finding("nccl", "ok", f"{versions[0]} in the lock{used}")
    elif not problems:
        yield Finding("nccl", "ok", "nothing set that keeps it from its best")
    yield from problems


def interface_problems(present: Sequence[str]) -> Iterator[Finding]:
    """Whether the interfaces that NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name exist."""
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        named = os.environ.get(variable)
        if named and present and not _matching(named, present):
            fix = f"unset {variable}, or name one of: {', '.join(present)}"
            yield Finding("nccl", "fail", f"{variable}={named} names no interface of this machine", fix)


def _matching(named: str, present: Sequence[str]) -> list[str]:
    """NCCL's reading: prefixes separated by commas; `^` before the list excludes, `=` asks for whole names."""
    excluding, exact = named.startswith("^"), named.lstrip("^").startswith("=")
    words = [word for word in named.lstrip("^=").split(",") if word]
    hit = [name for name in present if any(name == word if exact else name.startswith(word) for word in words)]
    return [name for name in present if name not in hit] if excluding else hit


def _interfaces(root: Path = Path("/sys/class/net")) -> list[str]:
    return sorted(path.name for path in root.iterdir()) if root.is_dir() else []


def _memlock() -> Iterator[Finding]:
    """RDMA registers memory, which needs it locked."""
    devices = rdma_devices()
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if devices and soft != resource.RLIM_INFINITY:
        found = f"RDMA devices ({', '.join(devices)}), and memlock is limited to {soft // 1024} KiB"
        yield Finding("nccl", "warn", found, "ulimit -l unlimited; in Docker: --ulimit memlock=-1")


def rdma_devices(root: Path = Path("/sys/class/infiniband")) -> list[str]:
    return sorted(path.name for path in root.iterdir()) if root.is_dir() else []


def _switches() -> Iterator[Finding]:
    for variable, meaning in SWITCHED_OFF.items():
        if os.environ.get(variable) not in (None, "", "0"):
            yield Finding(
                "nccl", "warn", f"{variable}={os.environ[variable]}: {meaning}", f"unset {variable} unless needed"
            )
