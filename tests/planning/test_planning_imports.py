"""Planning needs the standard library alone, and is quick."""

import subprocess
import sys

CODE = """
import sys, time
began = time.process_time()
from verl_core import planning
from verl_core.config.compose import resolve
from verl_core.planning.plan import gpu_for
config = resolve("256-gpu-grpo").config
planning.plan(config, gpu_for(config, "H200")[0])
print(time.process_time() - began)
heavy = {"torch", "ray", "transformers", "numpy", "vllm", "datasets", "pydantic", "omegaconf", "rich", "typer"}
print(sorted(heavy & set(sys.modules)))
"""


def test_no_heavy_module_and_256_ranks_in_a_second():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    seconds, heavy = done.stdout.splitlines()
    assert heavy == "[]"
    assert float(seconds) < 1.0
