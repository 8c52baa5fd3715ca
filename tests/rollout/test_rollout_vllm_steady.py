"""Steps told to vLLM by the short way are the ones of its own scheduler."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from rollout_vllm import ROOT, interpreter, write

pytestmark = pytest.mark.slow


def test_rows_are_those_of_vllms_own_scheduler_also_when_blocks_run_out(tmp_path: Path):
    write(tmp_path)
    script = Path(__file__).with_name("vllm_steady.py")
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [interpreter(), str(script), str(tmp_path)], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["steady"] > 30, "few steps went the short way"
    assert found["interrupted"] > 0, "no row was interrupted: the cache is too large for this test"
    for short, own in zip(found["short"], found["own"], strict=True):
        assert short[0] == own[0] and short[2:] == own[2:]
        if len(short) > 1:
            assert short[1] == pytest.approx(own[1], abs=1e-5)
