"""Two GPUs of one machine against one, both in the same run: a JSON line each.

    python tests/benchmarks/gpu_ranks.py weak 1.5B
    python tests/benchmarks/gpu_ranks.py ulysses 1.5B

weak: the update step of FSDP2 with `micro` micro-batches of `tokens` packed tokens on each GPU; efficiency = seconds
on one GPU / seconds on two. ulysses: one sequence of `tokens` tokens (65536), layers recomputed, whole on one GPU and
split over two; both losses (random weights, the same on any number of GPUs), speed-up, and peak memory. Median seconds
of `timed` steps (5) after `warm` of warm-up (4); model and loss are those of gpu_update.py. profile=FILE: rank 0 of two
writes the trace of one more step.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from gpu_update import VOCABULARY, Likelihood, make_engine

from verl_core.algorithms.loss import Totals
from verl_core.batch import Batch
from verl_core.platforms import current
from verl_core.training.fsdp import FsdpEngine
from verl_core.training.fsdp.state import copy_into


def sequences(count: int, length: int) -> Batch:
    torch.manual_seed(0)
    batch = Batch(torch.full((count,), length), torch.arange(count), {})
    return batch.add(ids_N=torch.randint(0, VOCABULARY, (batch.N,)), mask_N=torch.ones(batch.N, dtype=torch.bool))


def same_weights(engine: FsdpEngine) -> None:
    """Random ones that do not depend on how many ranks there are."""
    device = engine.platform.device
    generator = torch.Generator(device).manual_seed(0)
    for p in engine.network.parameters():
        random = torch.randn(p.shape, generator=generator, device=device) * 0.02
        copy_into(p.detach(), random if p.ndim > 1 else torch.ones_like(random))


def measure(rank: int, ranks: int, shape: str, job: dict) -> dict:
    """On one rank of `ranks`. The first step's loss, seconds of a step, peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(shape, Path(folder), job["tokens"], job["options"])
    same_weights(engine)
    batch = sequences(job["sequences"], job["length"])
    mine = batch if engine.split else batch.select(list(range(rank, batch.S, ranks)))
    loss, totals = Likelihood(), Totals(tokens=batch.N, sequences=batch.S)
    first, seconds = 0.0, []
    for i in range(job["warm"] + job["timed"]):
        if i == job["warm"]:
            engine.platform.reset_peak()
        engine.platform.synchronize()
        dist.barrier()
        start = time.perf_counter()
        metrics = engine.step(mine, loss, totals)
        engine.platform.synchronize()
        seconds.append(time.perf_counter() - start)
        first = first or metrics["actor/loss"]
    peak = engine.platform.memory().peak / 1e9
    if job["profile"] and ranks > 1:
        trace(lambda: engine.step(mine, loss, totals), job["profile"] if rank == 0 else None)
    return {"loss": first, "seconds": round(median(seconds[job["warm"] :]), 4), "peak_gb": round(peak, 1)}


def trace(step: Callable[[], object], file: str | None) -> None:
    from torch.profiler import profile

    with profile() as recorded:
        step()
        torch.cuda.synchronize()
    if file:
        recorded.export_chrome_trace(file)


def join(rank: int, ranks: int, port: int) -> None:
    torch.set_num_threads(1)  # as jobs do: a pool of 32 makes each small operation wait for the machine's scheduler
    os.environ["LOCAL_RANK"] = str(rank)
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast is not to be had on every machine
    platform = current()
    platform.set_device()
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(platform.comm_backend, init_method=address, rank=rank, world_size=ranks)


def on(ranks: int, shape: str, job: dict) -> dict:
    """Rank 0's figures; the ranks' processes end with the call."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    pools = [ProcessPoolExecutor(1, get_context("spawn"), join, (rank, ranks, port)) for rank in range(ranks)]
    results = [pool.submit(measure, rank, ranks, shape, job) for rank, pool in enumerate(pools)]
    found = [result.result() for result in results]  # an error of any rank is raised
    print(f"{ranks} ranks: {found[0]}", file=sys.stderr, flush=True)
    for pool in pools:
        pool.shutdown()
    return found[0]


def weak(shape: str, rule: dict, micro: int = 4, tokens: int = 16384, length: int = 2048) -> dict:
    each = micro * tokens // length
    one, two = (
        on(ranks, shape, rule | {"tokens": tokens, "length": length, "sequences": each * ranks, "options": {}})
        for ranks in (1, 2)
    )
    efficiency = round(one["seconds"] / two["seconds"], 3)
    return {
        "micro_batches": micro,
        "tokens": tokens,
        "length": length,
        "one": one,
        "two": two,
        "efficiency": efficiency,
    }


def ulysses(shape: str, rule: dict, tokens: int = 65536) -> dict:
    one, two = (
        on(
            ranks,
            shape,
            rule
            | {
                "tokens": tokens // ranks,
                "length": tokens,
                "sequences": 1,
                "options": {"checkpointing": "full", "split": ranks},
            },
        )
        for ranks in (1, 2)
    )
    difference = abs(one["loss"] - two["loss"])
    speedup = round(one["seconds"] / two["seconds"], 3)
    return {"tokens": tokens, "one": one, "two": two, "loss_difference": difference, "speedup": speedup}


def main(words: list[str]) -> None:
    options = dict(word.split("=") for word in words if "=" in word)
    rule = {"profile": options.pop("profile", ""), "warm": int(options.pop("warm", 4))}
    rule["timed"] = int(options.pop("timed", 5))
    sizes = {name: int(size) for name, size in options.items()}
    what, *shapes = (word for word in words if "=" not in word)
    for shape in shapes:
        figures = {"weak": weak, "ulysses": ulysses}[what](shape, rule, **sizes)
        gpu = {"torch": torch.__version__, "hardware": current().hardware}
        print(json.dumps({"measure": what, "shape": shape, **figures, **gpu}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
