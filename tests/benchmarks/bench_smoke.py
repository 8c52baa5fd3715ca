"""Whole runs of the embedded default, from the command to its end: seconds, and held-out accuracy before and after.

    uv run python tests/benchmarks/bench_smoke.py --seeds 0 1 2

The environment is made first and not counted. Prints one JSON line with a row a profile and seed, and the load of the
machine before the first run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "rlx"]
ENVIRON = os.environ | {"PYTHONPATH": f"{ROOT / 'cli'}{os.pathsep}{ROOT}"}


def one_run(profile: str, seed: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = subprocess.run(
            [*COMMAND, "train", profile, "--json", f"trainer.seed={seed}"],
            cwd=folder,
            env=ENVIRON,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        wall = time.perf_counter() - began
    summary = json.loads(done.stdout)
    phases = {name: round(summary["seconds"][name], 1) for name in ("warmup", "steps")}
    return {"profile": profile, "seed": seed, "wall_s": round(wall, 1), **phases, "val": summary["val"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", nargs="+", default=["smoke", "smoke-ppo"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    if not os.environ.get("RLX_PYTHON"):
        subprocess.run([*COMMAND, "env", "sync", args.profiles[0]], env=ENVIRON, check=True, stdout=subprocess.DEVNULL)
    rows = [one_run(profile, seed) for profile in args.profiles for seed in args.seeds]
    print(json.dumps({"benchmark": "smoke", "load_before": load, "rows": rows}))


if __name__ == "__main__":
    main()
