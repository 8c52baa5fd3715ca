"""Host memory that recorded CUDA graphs leave when they are dropped: a JSON line.

    OMP_NUM_THREADS=1 python tests/benchmarks/gpu_graph_memory.py

300 times, two graphs of 121 kernels each are recorded as the hf engine records its decode steps, and dropped as it does
when it sleeps; anonymous and shared memory of this process grow by so much each time after the first 100.
"""

import gc
import json
from pathlib import Path

import torch

from verl_core.rollout.hf.graphs import StepGraphs

ROUNDS, KERNELS = 300, 121


def host_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.partition(":")[0]: line.split() for line in lines}
    return (int(found["RssAnon"][1]) + int(found["RssShmem"][1])) * 1024


def main() -> None:
    device = torch.device("cuda")
    x, w = torch.randn(64, 512, device=device), torch.randn(512, 512, device=device)

    def step() -> None:
        y = x
        for _ in range((KERNELS - 1) // 3):
            y = (y @ w).relu() * 0.01
        x.copy_(y)

    graphs, before = StepGraphs(device), 0
    for turn in range(ROUNDS):
        if turn == ROUNDS // 3:
            gc.collect()
            before = host_bytes()
        for shape in (1, 2):
            graphs.run(shape, step)
        graphs.clear()
    gc.collect()
    each = (host_bytes() - before) / (ROUNDS - ROUNDS // 3)
    row = {"bytes_a_round": round(each), "bytes_a_kernel": round(each / (2 * KERNELS))}
    print(json.dumps(row | {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}))


if __name__ == "__main__":
    main()
