"""Memory of a run over many train-generate cycles: does it grow?

    python tests/benchmarks/bench_cycles.py [--cycles 1000] [--engine hf] [further words of `rlx train`]
    python tests/benchmarks/bench_cycles.py trainer.device=cuda      with nothing else on the GPU

`rlx train smoke` on the builtin model without its warm-up: 4 prompts x 4 answers of at most 24 tokens, an optimizer
step, new weights to the engine, again. After the cycles named by `--at` (the first 100 fill caches) this process reads
what the run's processes hold: host memory (anonymous and shared pages of all of them, each page once; those of files
count for nobody) and, where there is an NVIDIA GPU, the memory in use on those that CUDA_VISIBLE_DEVICES names. One
JSON line: MiB at each of those cycles, growth from the first to the last of them, and the least-squares slope in bytes
a cycle between the two.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = ("warmup.phases=[]", "data.train_batch_size=4", "actor.ppo_mini_batch_size=4", "rollout.n=4")
QUIET = ("trainer.test_freq=-1", "trainer.save_freq=-1", "trainer.val_before_train=false")
MIB = 2**20
LOOK_EVERY_S = 0.1
MORE = 5  # cycles behind the last look, so that it meets no process that ends


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def host_bytes(pid: int) -> int:
    total = 0
    for one in tree(pid):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total


def gpu_bytes() -> int | None:
    """In use on the GPUs that CUDA_VISIBLE_DEVICES names (all); None where there is no NVIDIA GPU."""
    if shutil.which("nvidia-smi") is None:
        return None
    ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        ask.append(f"--id={visible}")
    done = subprocess.run(ask, capture_output=True, text=True, check=False)
    return sum(int(line) for line in done.stdout.split()) * MIB if done.returncode == 0 else None


def watch(run: subprocess.Popen[bytes], lines: Path, cycles: int) -> list[tuple[int, int, int | None]]:
    """Cycle, bytes of host memory and of GPU memory, at every cycle that a look has met."""
    seen: list[tuple[int, int, int | None]] = []
    while run.poll() is None:
        done = lines.read_bytes().count(b"\n") if lines.exists() else 0
        if done > (seen[-1][0] if seen else 0):
            seen.append((done, host_bytes(run.pid), gpu_bytes()))
        if done >= cycles:
            break
        time.sleep(LOOK_EVERY_S)
    return seen


def growth(at: dict[int, int], points: list[tuple[int, int]]) -> dict[str, object]:
    first, last = min(at), max(at)
    within = [(c, b) for c, b in points if first <= c <= last]
    slope = statistics.linear_regression(*zip(*within, strict=True)).slope if len(within) > 1 else None
    return {
        "mib_at": {cycle: round(held / MIB, 1) for cycle, held in at.items()},
        "growth_mib": round((at[last] - at[first]) / MIB, 2),
        "bytes_a_cycle": None if slope is None else round(slope),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--engine", default="hf")
    parser.add_argument("--at", type=int, nargs="+", default=[100, 250, 500, 1000])
    args, more = parser.parse_known_args()
    wanted = sorted({min(cycle, args.cycles) for cycle in args.at})
    with tempfile.TemporaryDirectory() as folder:
        start, own = (
            time.perf_counter(),
            [f"rollout.engine={args.engine}", f"trainer.total_training_steps={args.cycles + MORE}"],
        )
        command = [
            sys.executable,
            "-m",
            "rlx",
            "train",
            "smoke",
            *WORDS,
            *QUIET,
            *own,
            "trainer.experiment_name=c",
            *more,
        ]
        with (Path(folder) / "said").open("wb") as said:
            run = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
            try:
                seen = watch(run, Path(folder) / "runs/smoke/c/metrics.jsonl", args.cycles)
                code = run.wait(120)
            finally:
                run.kill()
        if code != 0 or len(seen) < 2:
            sys.exit((Path(folder) / "said").read_text(errors="replace")[-2000:])
        seconds = time.perf_counter() - start
    nearest = {cycle: min(seen, key=lambda point: abs(point[0] - cycle)) for cycle in wanted}
    out: dict[str, object] = {"engine": args.engine, "cycles": args.cycles, "seconds": round(seconds, 1)}
    out["host"] = growth({cycle: point[1] for cycle, point in nearest.items()}, [(c, host) for c, host, _ in seen])
    on_gpu = [(c, gpu) for c, _, gpu in seen if gpu is not None]
    if on_gpu:
        at = {cycle: point[2] for cycle, point in nearest.items() if point[2] is not None}
        out["gpu"] = growth(at, on_gpu)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
