"""rlx against TRL's GRPOTrainer: same checkpoint, task, rollout count and learning rate, one thread each, one after the
other in the same run.

    uv run python tests/benchmarks/bench_trl.py [--steps 30] [--cache DIR]

rlx trains first, by its own command; TRL then starts from the warmed-up model that rlx started from, in an environment
of its own (made at first use, with the torch and transformers of rlx's lock). Prints one JSON line: steps/s of both
(from the median step after 3), their ratio, both reward curves (mean of each 5 steps), and the machine's load before:
the ratio means little on a machine that others use.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRL = "1.16.0"
WARMUP_STEPS = 3  # allocator, caches and lazy initialisation
CURVE = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="training steps of each side (more than 3)")
    parser.add_argument(
        "--cache", type=Path, default=Path("~/.cache/rlx/bench"), help="where TRL's environment is kept"
    )
    args = parser.parse_args()
    if args.steps <= WARMUP_STEPS:
        parser.error(f"--steps {args.steps}: the first {WARMUP_STEPS} are not counted")
    python = trl_environment(args.cache.expanduser().absolute())
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        model, rlx = run_rlx(Path(scratch), args.steps)
        trl = run_trl(python, model, args.steps)
    sides = {"rlx": rlx, "trl": trl}
    rates = {name: 1 / statistics.median(side["step_s"][WARMUP_STEPS:]) for name, side in sides.items()}
    result = {
        "benchmark": "trl",
        "steps": args.steps,
        "steps_per_s": {name: round(rate, 3) for name, rate in rates.items()},
        "ratio": round(rates["rlx"] / rates["trl"], 3),
        "reward": {name: curve(side["reward"]) for name, side in sides.items()},
        "versions": {"trl": TRL, **locked()},
        "load_before": round(load, 2),
    }
    print(json.dumps(result))


def run_rlx(scratch: Path, steps: int) -> tuple[Path, dict[str, list[float]]]:
    """The folder of the warmed-up model, and rlx's step times and rewards."""
    settings = [
        "actor.optim.lr=1e-4",
        f"trainer.total_training_steps={steps}",
        "trainer.val_before_train=false",
        "trainer.test_freq=0",
        "trainer.save_freq=0",
        f"trainer.default_local_dir={scratch}",
    ]
    command = [sys.executable, "-m", "rlx", "train", "smoke", *settings, "--json"]
    summary = json.loads(call(command, f"{ROOT / 'cli'}{os.pathsep}{ROOT}").splitlines()[-1])
    run_dir = Path(summary["run_dir"])
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return run_dir / "warmup", {
        "step_s": [line["timing_s/step"] for line in lines],
        "reward": [line["critic/score/mean"] for line in lines],
    }


def run_trl(python: Path, model: Path, steps: int) -> dict[str, list[float]]:
    return json.loads(call([python, Path(__file__).with_name("trl_side.py"), model, steps], str(ROOT)).splitlines()[-1])


def call(command: Sequence[object], pythonpath: str) -> str:
    """The command's stdout; its stderr is shown only when it fails."""
    env = os.environ | {
        "PYTHONPATH": pythonpath,
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def trl_environment(cache: Path) -> Path:
    """The interpreter of an environment with TRL, made by uv at first use."""
    versions = locked()
    folder = cache / f"trl-{TRL}-torch-{versions['torch']}-transformers-{versions['transformers']}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        uv = shutil.which("uv") or sys.exit("uv is not on PATH: pip install uv")
        pins = [f"trl=={TRL}", *(f"{name}=={version}" for name, version in versions.items())]
        print(f"making {folder} (about 3 GB of packages where uv has none cached)", file=sys.stderr)
        subprocess.run([uv, "venv", "--clear", "--python", sys.executable, folder], check=True, stdout=sys.stderr)
        subprocess.run([uv, "pip", "install", "--python", python, *pins], check=True, stdout=sys.stderr)
        complete.touch()
    return python


def locked() -> dict[str, str]:
    """The torch and transformers that rlx's fsdp environment uses."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    newest: dict[str, tuple[int, ...]] = {}
    for package in packages:
        if package["name"] in ("torch", "transformers"):
            version = tuple(int(part) for part in package["version"].split("+")[0].split("."))
            newest[package["name"]] = max(version, newest.get(package["name"], version))
    return {name: ".".join(map(str, version)) for name, version in sorted(newest.items())}


def curve(values: list[float]) -> list[float]:
    return [round(statistics.fmean(values[i : i + CURVE]), 3) for i in range(0, len(values), CURVE)]


if __name__ == "__main__":
    main()
