"""How long `rlx config show gsm8k-ppo --origin` takes, from starting the process to its end.

    uv run python tests/benchmarks/bench_config_show.py

Prints one JSON line: the median and the fastest of 10 runs, and beside them what a bare interpreter of the same kind
takes, seconds. The first run, which may compile bytecode, is not counted. 0.5 s is what it may take.
"""

import json
import statistics
import sys

from bench_help import seconds


def main() -> None:
    command = [sys.executable, "-m", "rlx", "config", "show", "gsm8k-ppo", "--origin"]
    show_s, bare_s = seconds(command), seconds([sys.executable, "-c", ""])
    result = {
        "benchmark": "config show gsm8k-ppo --origin",
        "median_s": round(statistics.median(show_s), 3),
        "fastest_s": round(min(show_s), 3),
        "bare_python_median_s": round(statistics.median(bare_s), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
