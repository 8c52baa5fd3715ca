"""`rlx prepare gsm8k` from local files, the whole command, beside `datasets.map` doing the same.

    uv run rlx env run smoke -- python tests/benchmarks/bench_prepare.py FOLDER

FOLDER has GSM8K's train.jsonl and test.jsonl, or .jsonl.gz. Prints one JSON line, seconds of wall-clock time:

- `cold`: into an empty folder, every module compiled from source, as after an installation,
- `warm`: into an empty folder, byte code at hand: the median of `--repeats`; `rows_s` is its rate,
- `unchanged`: again into the same folder, whose files are left alone,
- `datasets_1`, `datasets_2`: a script with `load_dataset("json")`, `map` in 1 or 2 processes and `to_parquet`, its own
  cache empty, the median; it makes the same rows, and no hashes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = 7473 + 1319
RIVAL = """
import sys
import datasets
source, out, processes = sys.argv[1], sys.argv[2], int(sys.argv[3])
def row(record, index):
    question, answer = record["question"], record["answer"]
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": question + " Answer after ####."}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer.split("#### ")[1].replace(",", "")},
        "extra_info": {"split": "", "index": index, "answer": answer, "question": question},
    }
for split in ("train", "test"):
    (file,) = __import__("pathlib").Path(source).glob(f"{split}.jsonl*")
    data = datasets.load_dataset("json", data_files=str(file), split="train")
    data = data.map(row, with_indices=True, num_proc=processes, remove_columns=data.column_names)
    data.to_parquet(f"{out}/{split}.parquet")
"""


def seconds(command: list[str], **variables: str) -> float:
    """Wall-clock seconds of a command; ends the benchmark when it fails."""
    began = time.perf_counter()
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return time.perf_counter() - began


def prepare(source: Path, out: Path, **variables: str) -> float:
    """`rlx prepare gsm8k` in this interpreter."""
    sources = f"{ROOT / 'cli'}{os.pathsep}{ROOT}"
    command = [sys.executable, "-m", "rlx", "prepare", "gsm8k", "--source", str(source), "--out", str(out)]
    return seconds(command, PYTHONPATH=sources, RLX_PYTHON=sys.executable, **variables)


def rival(source: Path, out: Path, processes: int) -> float:
    out.mkdir()
    command = [sys.executable, "-c", RIVAL, str(source), str(out), str(processes)]
    return seconds(command, HF_HOME=str(out / "cache"), HF_HUB_OFFLINE="1")


def median(times: int, measure: Callable[[int], float]) -> float:
    return round(statistics.median(measure(i) for i in range(times)), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="FOLDER")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cold = round(prepare(args.source, folder / "cold", PYTHONPYCACHEPREFIX=str(folder / "pycache")), 3)
        warm = median(args.repeats, lambda i: prepare(args.source, folder / f"warm{i}"))
        unchanged = median(args.repeats, lambda i: prepare(args.source, folder / "warm0"))
        by_map = {
            f"datasets_{n}": median(args.repeats, lambda i, n=n: rival(args.source, folder / f"map{n}-{i}", n))
            for n in (1, 2)
        }
    measured = {"cold": cold, "warm": warm, "rows_s": round(ROWS / warm), "unchanged": unchanged, **by_map}
    print(json.dumps({"rows": ROWS, **measured, "load_before": round(load, 2)}))


if __name__ == "__main__":
    main()
