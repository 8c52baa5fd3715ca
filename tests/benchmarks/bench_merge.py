"""`rlx merge` beside veRL 0.9.1's merger, of veRL's FSDP checkpoints, and beside accelerate's merge of FSDP shards, of
folders of torch.distributed.checkpoint with the same tensors: whole commands, one after the other.

    uv run rlx env run smoke -- python tests/benchmarks/bench_merge.py --verl PYTHON [--sizes 0.5b 3b] [--ranks 2 8 32]

PYTHON runs veRL 0.9.1 and accelerate, which it needs (tests/checkpoint/make_verl_checkpoints.py says how it is
installed). Checkpoints are made first, in --folder, one format at a time: random weights of Qwen2.5's 0.5B and 3B
shapes, float32 as both keep them, a file a rank. At 3B this takes 25 GB of disk. Prints one JSON line; for each size,
number of ranks and side:

- `seconds`: wall-clock time of the command, imports included, until all it wrote is on the disk; the median of
  `--repeats`, sides in turn, after one read of all files (so that the page cache is as warm as it can be for all),
- `gb_s`: bytes of the checkpoint a second; `merging_gb_s`: the same without the seconds of the side's `_imports`
  (absent where these took longer, on a machine that is too busy),
- `anonymous_mb`: the most memory of its own that the process had (RssAnon, each 20 ms),
- `file_mb`: the most of the page cache that it had mapped (RssFile), which the system takes back when it needs room,
- `peak_mb`: the most of both together, as the kernel counts it (VmHWM),
- `cached`: the share of the checkpoint that was in the page cache before the command, the least of all repeats.

`rlx` writes bfloat16 and verifies names and shapes, as `verl` does; `rlx_tensors` compares every value too.
`accelerate` and `rlx_dcp` write float32. rlx forces what it writes to the disk; after the others it is forced here.
The sides named `_imports` only load what the commands need. `load` is the machine's load average before.
"""

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

from merge_sources import SHAPES, make_dcp, make_verl

ROOT = Path(__file__).resolve().parents[2]
ACCELERATE = "import sys; from accelerate.utils import merge_fsdp_weights; merge_fsdp_weights(*sys.argv[1:])"
KINDS = {"RssAnon": "anonymous_mb", "RssFile": "file_mb", "VmHWM": "peak_mb"}
Side = tuple[list[str], dict[str, str]]
"""A command without its last word, which is the folder to write, and its variables."""


def watched(command: list[str], out: Path, **variables: str) -> dict[str, float]:
    """Seconds, until the files in `out` are on the disk, and peak memory in MB of a command; ends the benchmark when it
    fails."""
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        peaks = dict.fromkeys(KINDS, 0)
        process = subprocess.Popen(command, env=os.environ | variables, stdout=said, stderr=said)
        while process.poll() is None:
            for key, value in _memory(process.pid).items():
                peaks[key] = max(peaks[key], value)
            time.sleep(0.02)
        for path in out.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        seconds = time.perf_counter() - began
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command)} failed:\n{said.read().decode(errors='replace')[-4000:]}")
    megabytes = {name: peaks[key] / 1e6 for key, name in KINDS.items()}
    return {"seconds": seconds, **megabytes}


def _memory(pid: int) -> dict[str, int]:
    """The sizes of `KINDS` in bytes; empty when the process has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    parts = (line.split() for line in lines if line.partition(":")[0] in KINDS)
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, _ in parts}


def of_verl(source: Path, verl: str | None) -> dict[str, Side]:
    """The sides that merge what veRL has saved."""
    commands = {
        "rlx": rlx(source, "--dtype", "bf16", "--verify", "none"),
        "rlx_tensors": rlx(source, "--dtype", "bf16", "--verify", "tensors"),
        "rlx_imports": imports(sys.executable, "verl_core.checkpoint.merge_job"),
    }
    if verl:
        theirs = [verl, "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--tie-word-embedding"]
        commands["verl"] = ([*theirs, "--local_dir", str(source), "--target_dir"], {"CUDA_VISIBLE_DEVICES": ""})
        commands["verl_imports"] = imports(verl, "verl.model_merger.fsdp_model_merger")
    return commands


def of_accelerate(source: Path, verl: str | None) -> dict[str, Side]:
    """The sides that merge what accelerate has saved."""
    commands = {
        "rlx_dcp": rlx(source, "--dtype", "keep", "--verify", "none"),
        "rlx_imports": imports(sys.executable, "verl_core.checkpoint.merge_job"),
    }
    if verl:
        commands["accelerate"] = ([verl, "-c", ACCELERATE, str(source)], {"CUDA_VISIBLE_DEVICES": ""})
        commands["accelerate_imports"] = imports(verl, "accelerate.utils")
    return commands


def rlx(source: Path, *options: str) -> Side:
    command = [sys.executable, "-m", "verl_core.checkpoint.merge_job", str(source), *options, "--out"]
    return command, {"PYTHONPATH": f"{ROOT / 'cli'}{os.pathsep}{ROOT}"}


def imports(python: str, module: str) -> Side:
    return [python, "-c", f"import {module}"], {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


def measured(files: list[Path], sides: dict[str, Side], repeats: int, out: Path) -> dict[str, dict[str, float]]:
    for path in files:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    size = sum(path.stat().st_size for path in files)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, (command, variables) in sides.items():
            shutil.rmtree(out, ignore_errors=True)
            cached = min(1.0, cached_bytes(files) / size)  # it counts whole pages
            runs[name].append(watched([*command, str(out)], out, **variables) | {"cached": cached})
    shutil.rmtree(out, ignore_errors=True)
    result = {}
    for name, several in runs.items():
        middle = {key: statistics.median(run[key] for run in several) for key in several[0]}
        result[name] = middle | {"cached": min(run["cached"] for run in several)}
    for name, middle in result.items():
        if not name.endswith("_imports"):
            imported = result[f"{name.partition('_')[0]}_imports"]["seconds"]
            middle["gb_s"] = size / middle["seconds"] / 1e9
            if middle["seconds"] > imported:
                middle["merging_gb_s"] = size / (middle["seconds"] - imported) / 1e9
    return {name: {key: round(value, 3) for key, value in middle.items()} for name, middle in result.items()}


def cached_bytes(files: list[Path]) -> int:
    """How much of them is in the page cache, as util-linux's fincore tells."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, files)]
    return sum(map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", help="interpreter of an environment with veRL 0.9.1 and accelerate")
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=["0.5b", "3b"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 8, 32])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("bench-merge"), help="for checkpoints; emptied afterwards")
    options = parser.parse_args()
    line: dict[str, object] = {"load": os.getloadavg()[0]}
    for size in options.sizes:
        for ranks in options.ranks:
            found: dict[str, dict[str, float]] = {}
            for make, sides in ((make_verl, of_verl), (make_dcp, of_accelerate)):
                source = options.folder / f"{size}-{ranks}"
                make(source, size, ranks)
                files = [*source.glob("*.pt"), *source.glob("*.distcp")]
                found |= measured(files, sides(source, options.verl), options.repeats, options.folder / "out")
                shutil.rmtree(source)
            line[f"{size}, {ranks} ranks"] = found
    print(json.dumps(line))


if __name__ == "__main__":
    main()
