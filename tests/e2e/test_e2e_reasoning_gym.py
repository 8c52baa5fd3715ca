"""reasoning-gym by the real command: its environment, its problems, its verifiers, and a run on its files."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

OWN = {"RLX_PYTHON": None}  # an environment of rlx's making, kept with the others


@pytest.mark.slow
def test_a_task_is_prepared_scored_and_planned_in_its_environment(rlx, tmp_path: Path):
    out = tmp_path / "data"
    found = rlx("env", "ls", "--json", env=OWN)
    if "fsdp-reasoning-gym-" not in found.stdout:
        pytest.skip("minutes of compiling: rlx env sync --backend fsdp --extra reasoning-gym makes it")
    words = ("--count", "20", "--test-count", "5", "--set", "max_numbers=3,min_numbers=3", "--out", str(out))
    done = rlx("prepare", "reasoning-gym:countdown", *words, "--validate", "--json", env=OWN, timeout=600)
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    assert manifest["needs"] == ["reasoning-gym"]
    assert manifest["validated"] == {"rows parsed": 25, "golds usable": 25, "worked answers right": 25}

    planned = rlx("train", "smoke", f"data.train_files={out}", f"data.val_files={out}", "--dry-run", "--json", env=OWN)
    python = json.loads(planned.stdout)["environment"]["path"] + "/bin/python"
    assert "fsdp-reasoning-gym-" in python

    checked = subprocess.run(
        [python, "-P", "-m", "tests.support.reasoning_gym_verifiers"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    found = json.loads(checked.stdout)
    assert found["wrong"] == {}
    assert found["tasks"] == 105 and found["worked answers"] >= 100
