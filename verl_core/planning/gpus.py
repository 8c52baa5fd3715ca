"""What a card can do, by its name. Memory as nvidia-smi reports it; FLOP/s dense bf16; bandwidths in one direction."""

import difflib
import os
import re
import subprocess
from dataclasses import dataclass, replace
from itertools import pairwise

from verl_core.config.errors import UserError

GB, MIB = 1e9, 2**20


@dataclass(frozen=True)
class Gpu:
    name: str
    memory: float
    """Bytes that nvidia-smi reports."""
    flops: float
    """Dense bf16 FLOP/s."""
    memory_bandwidth: float
    """Bytes/s of its own memory."""
    link: float
    """Bytes/s to another GPU of the machine, one direction: NVLink, or PCIe where there is none."""
    pcie: float
    """Bytes/s to host memory, one direction."""
    network: float
    """Bytes/s of this GPU's share of the network between machines."""
    is_cpu: bool = False


def _gpu(name: str, mib: int, tflops: float, tbs: float, link: float, pcie: float, gbits: float) -> Gpu:
    return Gpu(name, mib * MIB, tflops * 1e12, tbs * 1e12, link * GB, pcie * GB, gbits * GB / 8)


# Data sheets of the vendors (docs/planning.md names them). PCIe at 80 % of its raw rate; network as usually built.
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("B200", 183359, 2250, 8.0, 900, 51, 400),
        _gpu("H200", 143771, 989, 4.8, 450, 51, 400),
        _gpu("H100", 81559, 989, 3.35, 450, 51, 400),
        _gpu("H800", 81559, 989, 3.35, 200, 51, 400),
        _gpu("H20", 97871, 148, 4.0, 450, 51, 400),
        _gpu("A100-80GB", 81920, 312, 2.039, 300, 25, 200),
        _gpu("A100-40GB", 40960, 312, 1.555, 300, 25, 200),
        _gpu("A800", 81920, 312, 2.039, 200, 25, 200),
        _gpu("MI300X", 196592, 1307, 5.3, 448, 51, 400),
        _gpu("L40S", 46068, 362, 0.864, 25, 25, 100),
        _gpu("L4", 23034, 121, 0.3, 25, 25, 100),
        _gpu("A10", 23028, 125, 0.6, 25, 25, 100),
        _gpu("RTX4090", 24564, 165, 1.008, 25, 25, 25),
        _gpu("RTX3090", 24576, 71, 0.936, 25, 25, 25),
    )
}
DEFAULT = "H200"
_ALIASES = {"A100": "A100-80GB", "A10G": "A10", "4090": "RTX4090", "3090": "RTX3090"}
_OTHER_CLOCKS = {"H200": frozenset({"nvl"}), "H100": frozenset({"nvl", "pcie"})}  # words of other builds' names
_BY_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GB|GiB|G)", re.IGNORECASE)


def named(name: str) -> Gpu:
    """A card by name, or by memory ("24GB": 24 x 10^9 bytes with the modest figures of an A10).

    Raises UserError that lists the choices.
    """
    if size := _BY_SIZE.fullmatch(name.strip()):
        n_bytes = float(size[1]) * (2**30 if size[2].lower() == "gib" else GB)
        if n_bytes > 0:
            return replace(GPUS["A10"], name=f"a card of {size[1]} {size[2]}", memory=n_bytes)
    wanted = _simple(name)
    choices = {_simple(known): known for known in (*GPUS, *_ALIASES)}
    if wanted in choices:
        return GPUS[_ALIASES.get(choices[wanted], choices[wanted])]
    near = [choices[close] for close in difflib.get_close_matches(wanted, choices, n=1)]
    if name.isdecimal():
        near = [f"{name}GB"]
    question = f"; did you mean {near[0]}?" if near else ""
    raise UserError(f"--gpu {name}: no such card{question}", f"choose a memory size such as 24GB, or {', '.join(GPUS)}")


def this_machine() -> Gpu | None:
    """The first GPU that nvidia-smi lists; None without one. Of a model unknown here only the memory is taken."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        name, _, mib = done.stdout.splitlines()[0].rpartition(",")
        memory = float(mib) * MIB
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return None
    best = min(_of_product(name), key=lambda gpu: abs(gpu.memory - memory), default=GPUS["A10"])
    return replace(best, name=name.strip(), memory=memory)


def peak_flops(product: str) -> float | None:
    """Dense bf16 FLOP/s of a card by its product name as the driver gives it, e.g. NVIDIA H200; None for a processor,
    an unknown card, and a build of a known one that runs at other clocks."""
    words = _words(product)
    known = {gpu.flops for gpu in _of_product(product) if not words & _OTHER_CLOCKS.get(gpu.name, frozenset())}
    return known.pop() if len(known) == 1 else None


def cpu() -> Gpu:
    """This machine's CPU as if it were a card: its memory, and modest figures for its cores (not measured)."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Gpu("the CPU of this machine", memory, 50e9, 10 * GB, 5 * GB, 5 * GB, 1 * GB, is_cpu=True)


def _of_product(name: str) -> list[Gpu]:
    words = _words(name)
    return [gpu for gpu in GPUS.values() if _simple(gpu.name.partition("-")[0]) in words]


def _simple(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _words(name: str) -> set[str]:
    """Words of a product name, and neighbours joined: "GeForce RTX 4090" has rtx4090."""
    words = [_simple(word) for word in re.split(r"[\s-]+", name)]
    return {*words, *(a + b for a, b in pairwise(words))}
