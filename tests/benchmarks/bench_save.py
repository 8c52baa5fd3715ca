"""What a step of training loses to a checkpoint: written before it goes on, and behind it.

    python tests/benchmarks/bench_save.py [GB] [rounds] [cpu | cuda] [folder]

One rank's weights and two Adam moments in float32, GB (default 1.5) in all, saved alternately in both ways into
`folder` (default: the temporary one). Prints one JSON line: medians of the seconds until training may go on (`stall`)
and until the checkpoint is whole, the first save behind apart; seconds of a step of matrix products alone and beside
the writer; anonymous memory, in shares of what is saved: of the copy, and how far it rises in a save.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch

from verl_core.checkpoint import CheckpointStore, save_role, state_bytes
from verl_core.checkpoint.unwritten import Unwritten
from verl_core.training.protocol import EngineState

ROWS = 2048


def engine_state(n_bytes: float, device: str) -> EngineState:
    count = max(1, round(n_bytes / 3 / (4 * ROWS * ROWS)))
    names = [f"model.layers.{i}.weight" for i in range(count)]
    weights = {name: torch.randn(ROWS, ROWS, device=device) for name in names}
    moments = {f"{key}/{name}": torch.randn(ROWS, ROWS, device=device) for key in ("m", "v") for name in names}
    return EngineState(weights, moments, {"step": 0})


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


@contextmanager
def rise() -> Iterator[Callable[[], int]]:
    """The largest rise of anonymous memory inside, sampled."""
    before, most, over = anonymous_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.005):
            most = max(most, anonymous_bytes() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most
    finally:
        over.set()
        thread.join()


def step(device: str) -> float:
    """Seconds of a step that stands for training."""
    began = time.perf_counter()
    x = torch.ones(1024, 1024, device=device)
    for _ in range(20):
        x = x @ x / 1024
    float(x.sum())
    return time.perf_counter() - began


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main(words: list[str]) -> None:
    n_gb, rounds, device, folder = (*words, *("1.5", "5", "cpu", tempfile.gettempdir())[len(words) :])
    state, shares = engine_state(float(n_gb) * 1e9, device), Unwritten()
    size, alone, before = state_bytes(state), median(step(device) for _ in range(20)), anonymous_bytes()
    shares.expect(state)  # as after a run's first step; more follow
    while shares.copies.bytes < size:
        step(device)
    made = anonymous_bytes()
    stall: dict[str, list[float]] = {"sync": [], "async": []}
    whole: dict[str, list[float]] = {"sync": [], "async": []}
    rose: dict[str, list[float]] = {"sync": [], "async": []}
    beside: list[float] = []
    with tempfile.TemporaryDirectory(dir=folder) as root, ThreadPoolExecutor(1) as writer:
        store = CheckpointStore(Path(root), keep=1)

        def complete(number: int) -> None:
            shares.write()
            store.commit(number)

        for number in range(2 * (int(rounds) + 1)):
            way = "async" if number % 2 else "sync"
            synchronize(device)
            with rise() as rose_by:
                began = time.perf_counter()
                path = store.begin(number, size)
                if way == "sync":
                    save_role(path / "actor", state)
                    store.commit(number)
                    stall[way].append(time.perf_counter() - began)
                else:
                    shares.take(path / "actor", state)
                    synchronize(device)
                    stall[way].append(time.perf_counter() - began)
                    writing = writer.submit(complete, number)
                    while not writing.done():
                        beside.append(step(device))
                    writing.result()
                whole[way].append(time.perf_counter() - began)
                rose[way].append(rose_by() / size)
    first = stall["async"].pop(0)
    medians = {f"{way}_s": round(median(took), 4) for way, took in stall.items()}
    line = {
        "bytes": size,
        "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} thread(s)",
        "load": round(os.getloadavg()[0], 2),
        "stall": medians | {"async_first_s": round(first, 4)},
        "stall_share": round(medians["async_s"] / medians["sync_s"], 4),
        "whole": {f"{way}_s": round(median(took), 4) for way, took in whole.items()},
        "step": {"alone_s": round(alone, 4), "beside_writer_s": round(median(beside), 4)},
        "anonymous_memory_rise": {
            "sync": round(max(rose["sync"]), 3),
            "async": round(max(rose["async"]), 3),
            "of_the_copy": round((made - before) / size, 3),
        },
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main(sys.argv[1:])
