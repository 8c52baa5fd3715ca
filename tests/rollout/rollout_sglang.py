"""The real SGLang in a process of its own, on the CPU, from the environment that the lock describes for it. Its kernels
for GPUs are not called there; the one that its CPU path misses is in sglang_on_cpu/vllm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rollout_vllm import EOS, ROOT

from verl_core.rollout.child import ChildEngine

SHIMS = Path(__file__).parent / "sglang_on_cpu"
WORDS = {"eos_ids": EOS, "dtype": "float32", "max_model_len": 512, "max_num_seqs": 32, "kv_cache_bytes": 2**26}


def interpreter() -> str:
    """The python of SGLang's environment. Skips where it is not made: that takes 9 GB."""
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}", "NO_COLOR": "1"}
    variables.pop("RLX_PYTHON", None)
    command = [sys.executable, "-m", "rlx", "env", "which", "--engine", "sglang", "--backend", "fsdp"]
    found = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    folder = Path(found.stdout.strip().splitlines()[-1])
    if not (folder / "rlx-env.json").exists():
        pytest.skip("no environment with SGLang: rlx env sync --engine sglang --backend fsdp")
    return str(folder / "bin" / "python")


def sglang_child(folder: Path, factory: str = "sglang_factory:make", **options: Any) -> ChildEngine:
    """An engine without the look at the GPU."""
    env = {"PYTHONPATH": os.pathsep.join([str(SHIMS), str(SHIMS.parent)]), "OMP_NUM_THREADS": "1"}
    return ChildEngine(factory, {"model": str(folder)} | WORDS | options, python=interpreter(), env=env)
