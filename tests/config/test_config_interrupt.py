"""Ctrl-C of a job that `rlx` has become: at once while its packages are imported, then as `run_job` has it."""

import signal
import subprocess
import sys

import pytest

from tests.conftest import command_variables

IMPORTING = "print('ready', flush=True); time.sleep(600)"
WORKING = f"from verl_core.config.process import run_job; run_job(lambda _: exec({IMPORTING!r}))"


@pytest.mark.parametrize("does", [IMPORTING, WORKING])
def test_ctrl_c_ends_a_job(does):
    begun = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}); import verl_core; "
    words = [sys.executable, "-c", begun + does]
    process = subprocess.Popen(
        words, env=command_variables({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    try:
        assert process.communicate(timeout=60)[1] == "interrupted\n"
    finally:
        process.kill()
    assert process.returncode == 130
