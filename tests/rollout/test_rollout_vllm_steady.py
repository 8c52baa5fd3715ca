"""Steps told to vLLM by the short way are the ones of its own scheduler."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rollout_vllm import ROOT, interpreter, write

pytestmark = pytest.mark.slow


def told_by(script: str, folder: Path) -> Any:
    """The JSON that a script beside this file prints, run by vLLM's environment on a tiny model."""
    write(folder)
    command = [interpreter(), str(Path(__file__).with_name(script)), str(folder)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_each_step_leaves_the_schedulers_as_vllms_own_way_does(tmp_path: Path):
    """With prompts in chunks, rows dropped and caches reset under a step, interruptions; asynchronous ones too."""
    for steady, interrupted in told_by("vllm_lockstep.py", tmp_path):
        assert steady > 150, "few steps went the short way"
        assert interrupted > 5, "few rows were interrupted for want of blocks"


def test_rows_are_those_of_vllms_own_scheduler_also_when_blocks_run_out(tmp_path: Path):
    found = told_by("vllm_steady.py", tmp_path)
    assert found["steady"] > 30, "few steps went the short way"
    assert found["interrupted"] > 0, "no row was interrupted: the cache is too large for this test"
    for short, own in zip(found["short"], found["own"], strict=True):
        assert short[0] == own[0] and short[2:] == own[2:]
        if len(short) > 1:
            assert short[1] == pytest.approx(own[1], abs=1e-5)
