"""The NVIDIA driver: the CUDA it runs against the CUDA of the lock. Asked without torch, which is not there yet."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlx.env.requirements import Package
from verl_core.config.errors import EnvError

Version = tuple[int, int]

BRANCHES = {11: 450, 12: 525, 13: 580}
"""CUDA's major version and the first driver branch that runs it (NVIDIA, CUDA Toolkit release notes, table 3). Within a
major version, older drivers of it run newer toolkits."""

# In a child: loading libcuda into the command could hang or crash it. The loader looks at LD_LIBRARY_PATH, so that a
# cuda-compat package there counts, as it does for torch.
_ASK_LIBCUDA = """
import ctypes, sys
version = ctypes.c_int()
sys.exit(ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) or print(version.value))
"""
TIMEOUT_S = 20
"""nvidia-smi takes seconds where the driver is not kept loaded, and hangs on a broken GPU."""


@dataclass(frozen=True)
class Driver:
    """The newest CUDA that the installed driver runs, and who said so."""

    cuda: Version
    source: str


def cuda_needed(packages: Iterable[Package]) -> Version | None:
    """The CUDA version of the locked packages, (13, 0); None when they hold no CUDA (macOS, a CPU build)."""
    versions = {package.name: package.version for package in packages}
    runtimes = [name for name in versions if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", name)]
    for name in ("cuda-toolkit", *runtimes):
        if name in versions:
            major, minor = versions[name].split(".")[:2]
            return int(major), int(minor)
    return None


def installed() -> Driver | None:
    """What libcuda says, else nvidia-smi; None when neither answers."""
    return _from_libcuda() or _from_nvidia_smi()


def _from_libcuda() -> Driver | None:
    number = _answer([sys.executable, "-c", _ASK_LIBCUDA])
    if number is None or not number.strip().isdecimal():
        return None
    value = int(number)  # 13000 is CUDA 13.0, 12080 is 12.8
    return Driver((value // 1000, value % 1000 // 10), "libcuda") if value else None


def _from_nvidia_smi() -> Driver | None:
    if shutil.which("nvidia-smi") is None:
        return None
    told = _answer(["nvidia-smi"]) or ""
    if cuda := re.search(r"CUDA (?:\w+ )?Version\s*:\s*(\d+)\.(\d+)", told):
        return Driver((int(cuda[1]), int(cuda[2])), "nvidia-smi")
    driver = re.search(r"Driver Version\s*:\s*(\d+)\.", told)
    majors = [major for major, branch in BRANCHES.items() if driver and int(driver[1]) >= branch]
    return Driver((max(majors), 0), f"nvidia-smi, driver branch {driver[1]}") if driver and majors else None


def _answer(command: Sequence[str]) -> str | None:
    """What the command prints; None when it fails, is not there or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def runs(driver: Driver, cuda: Version) -> bool:
    """Whether programs built with `cuda` start on the driver: a driver runs every toolkit of its major version."""
    return driver.cuda[0] >= cuda[0]


def fix(cuda: Version) -> str:
    """What helps where the driver is too old for `cuda`."""
    branch = BRANCHES.get(cuda[0])
    newer = f"driver {branch} or newer" if branch else "a newer driver"
    return (
        f"install {newer}; or, on data-center GPUs, the package cuda-compat-{cuda[0]}-{cuda[1]} with its folder on "
        "LD_LIBRARY_PATH; or an image made for this driver: RLX_PYTHON=/path/to/python; or trainer.device=cpu"
    )


def check(packages: Sequence[Package]) -> None:
    """EnvError when there is an NVIDIA driver and it cannot run the CUDA of these packages."""
    needed = cuda_needed(packages)
    driver = installed() if needed else None
    if needed and driver and not runs(driver, needed):
        raise EnvError(too_old(driver, needed), fix(needed))


def too_old(driver: Driver, cuda: Version) -> str:
    """The message of `check`, one line."""
    runs_up_to = f"{driver.cuda[0]}.{driver.cuda[1]}"
    return f"the NVIDIA driver runs CUDA {runs_up_to} ({driver.source}), and the lock is for CUDA {cuda[0]}.{cuda[1]}"
