"""The configuration costs no heavy import, and composing one is quick."""

import subprocess
import sys

CODE = """
import importlib, pkgutil, sys, time
import verl_core.config
for module in pkgutil.iter_modules(verl_core.config.__path__):
    importlib.import_module(f"verl_core.config.{module.name}")
began = time.process_time()
from verl_core.config.compose import resolve
from verl_core.config.effective import effective, extras
from verl_core.config.write import dump
resolved = resolve("gsm8k-grpo", ["trainer.seed=1", "actor_rollout_ref.actor.optim.lr=1e-6"])
dump(resolved.config), extras(effective(resolved.config))
print(time.process_time() - began)
heavy = {"torch", "ray", "transformers", "numpy", "vllm", "datasets", "pydantic", "omegaconf", "rich", "typer"}
print(sorted(heavy & set(sys.modules)))
"""


def test_no_heavy_module_and_half_a_second():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    seconds, heavy = done.stdout.splitlines()
    assert heavy == "[]"
    assert float(seconds) < 0.5
