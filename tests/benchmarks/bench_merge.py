"""`rlx merge` of veRL's FSDP checkpoints beside veRL 0.9.1's own merger: whole commands, one after the other.

    uv run rlx env run smoke -- python tests/benchmarks/bench_merge.py --verl PYTHON [--sizes 0.5b 3b] [--ranks 2 8 32]

PYTHON runs veRL 0.9.1 (tests/checkpoint/make_verl_checkpoints.py says how it is installed). Checkpoints are made first,
in --folder: random weights of Qwen2.5's 0.5B and 3B shapes, float32 as veRL keeps them, a file a rank. Prints one JSON
line; for each size, number of ranks and side:

- `seconds`: wall-clock time of the command, imports included; the median of `--repeats`, sides in turn, after one read
  of all files (so that the page cache is as warm as it can be for both),
- `gb_s`: bytes of the checkpoint a second,
- `anonymous_mb`: the most memory of its own that the process had (RssAnon, each 20 ms),
- `file_mb`: the most of the page cache that it had mapped (RssFile), which the system takes back when it needs room.

`rlx` writes bfloat16 and verifies names and shapes, as veRL does; `rlx_tensors` compares every value too. The sides
named `_imports` only load what the commands need. `load` is the machine's load average before.
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

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 1000},
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "vocab_size": 151936},
    "3b": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
           "num_key_value_heads": 2, "vocab_size": 151936},
}  # fmt: skip


def config_of(size: str) -> PretrainedConfig:
    config = AutoConfig.for_model("qwen2", tie_word_embeddings=True, **SHAPES[size])
    config.architectures = ["Qwen2ForCausalLM"]
    return config


def make(folder: Path, size: str, ranks: int) -> None:
    """A checkpoint as `ranks` processes leave it; one process plays them one after the other, over no network."""
    actor = folder / "global_step_1" / "actor"
    actor.mkdir(parents=True)
    config = config_of(size)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in AutoModelForCausalLM.from_config(config).state_dict().items()}
    for rank in range(ranks):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
        state = {name: _shard(name, shape, rank, ranks, mesh) for name, shape in shapes.items()}
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
        torch.save(state, actor / f"model_world_size_{ranks}_rank_{rank}.pt")
        dist.destroy_process_group()
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    config.save_pretrained(actor / "huggingface")


def _shard(name: str, shape: torch.Size, rank: int, ranks: int, mesh: dist.DeviceMesh) -> DTensor:
    rows = -(-shape[0] // ranks)
    count = max(0, min(rows, shape[0] - rank * rows))
    local = torch.randn((count, *shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def watched(command: list[str], **variables: str) -> dict[str, float]:
    """Seconds and peak memory in MB of a command; ends the benchmark when it fails."""
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        peaks = {"RssAnon": 0, "RssFile": 0}
        process = subprocess.Popen(command, env=os.environ | variables, stdout=said, stderr=said)
        while process.poll() is None:
            for key, value in _memory(process.pid).items():
                peaks[key] = max(peaks[key], value)
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command)} failed:\n{said.read().decode(errors='replace')[-4000:]}")
    return {"seconds": seconds, "anonymous_mb": peaks["RssAnon"] / 1e6, "file_mb": peaks["RssFile"] / 1e6}


def _memory(pid: int) -> dict[str, int]:
    """RssAnon and RssFile in bytes; empty when the process has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    parts = (line.split() for line in lines if line.startswith(("RssAnon:", "RssFile:")))
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, _ in parts}


def sides(source: Path, verl: str | None) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Name -> command, without its last word, which is the folder to write, and its variables."""
    actor = source / "global_step_1" / "actor"
    ours = [sys.executable, "-m", "verl_core.checkpoint.merge_job", str(source), "--dtype", "bf16"]
    path = {"PYTHONPATH": f"{ROOT / 'cli'}{os.pathsep}{ROOT}"}
    commands = {
        "rlx": ([*ours, "--verify", "none", "--out"], path),
        "rlx_tensors": ([*ours, "--verify", "tensors", "--out"], path),
        "rlx_imports": ([sys.executable, "-c", "import verl_core.checkpoint.merge_job"], path),
    }
    if verl:
        theirs = [verl, "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--tie-word-embedding"]
        no_gpu = {"CUDA_VISIBLE_DEVICES": ""}
        commands["verl"] = ([*theirs, "--local_dir", str(actor), "--target_dir"], no_gpu)
        commands["verl_imports"] = ([verl, "-c", "import verl.model_merger.fsdp_model_merger"], no_gpu)
    return commands


def measured(source: Path, verl: str | None, repeats: int, out: Path) -> dict[str, dict[str, float]]:
    files = list(source.rglob("*.pt"))
    for path in files:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    size = sum(path.stat().st_size for path in files)
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(repeats):
        for name, (command, variables) in sides(source, verl).items():
            shutil.rmtree(out, ignore_errors=True)
            runs.setdefault(name, []).append(watched([*command, str(out)], **variables))
    shutil.rmtree(out, ignore_errors=True)
    result = {}
    for name, several in runs.items():
        middle = {key: statistics.median(run[key] for run in several) for key in several[0]}
        result[name] = {key: round(value, 2) for key, value in middle.items()}
        if not name.endswith("_imports"):
            result[name]["gb_s"] = round(size / middle["seconds"] / 1e9, 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", help="interpreter of an environment with veRL 0.9.1")
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=["0.5b", "3b"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 8, 32])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("bench-merge"), help="for checkpoints; emptied afterwards")
    options = parser.parse_args()
    line: dict[str, object] = {"load": os.getloadavg()[0]}
    for size in options.sizes:
        for ranks in options.ranks:
            source = options.folder / f"{size}-{ranks}"
            make(source, size, ranks)
            line[f"{size}, {ranks} ranks"] = measured(source, options.verl, options.repeats, options.folder / "out")
            shutil.rmtree(source)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
