"""How long `rlx --help` takes, from starting the process to its end.

    uv run python tests/benchmarks/bench_help.py

Prints one JSON line: the median and the fastest of 10 runs, and beside them what a bare interpreter of the same kind
takes, seconds. The first run, which may compile bytecode, is not counted.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = 10


def seconds(command: list[str]) -> list[float]:
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'cli'}{os.pathsep}{ROOT}"}
    times = []
    for _ in range(RUNS + 1):
        began = time.perf_counter()
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return times[1:]


def main() -> None:
    help_s, bare_s = seconds([sys.executable, "-m", "rlx", "--help"]), seconds([sys.executable, "-c", ""])
    result = {
        "benchmark": "help",
        "median_s": round(statistics.median(help_s), 3),
        "fastest_s": round(min(help_s), 3),
        "bare_python_median_s": round(statistics.median(bare_s), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
