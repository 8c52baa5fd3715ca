"""`rlx doctor`: one finding a check, and exit 4 when one fails."""

import json
import os

import pytest


def test_findings_and_their_form(rlx):
    done = rlx("doctor", "--json", env={"RLX_PYTHON": None})
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert list(found) == [
        "python", "uv", "lock", "RLX_PYTHON", "environments", "runs", "/dev/shm", "gpu", "git", "ray",
    ]  # fmt: skip
    assert found["lock"]["state"] == found["python"]["state"] == "ok"
    assert all(finding["fix"] for finding in found.values() if finding["state"] != "ok")


def test_a_failure_is_exit_4_with_a_fix(rlx):
    done = rlx("doctor", env={"RLX_PYTHON": "/no/python"})
    assert done.returncode == 4
    line, fix = (line for line in done.stdout.splitlines() if "RLX_PYTHON" in line)
    assert line.startswith("fail") and "fix:" in fix
    assert done.stderr.startswith("error: this machine fails:")


def test_under_json_only_json_is_on_stdout_also_when_a_check_fails(rlx):
    done = rlx("doctor", "--json", env={"RLX_PYTHON": "/no/python"})
    assert done.returncode == 4
    assert "fail" in [finding["state"] for finding in json.loads(done.stdout)]


@pytest.mark.parametrize(
    ("printed", "state", "said"),
    [
        ("NVIDIA H200, 143771 MiB, 580.95.05", "ok", "1 x NVIDIA H200"),
        ("NVIDIA H200, 143771 MiB, 550.54.15", "fail", "driver 550.54.15 is too old"),
        ("NVIDIA GB10, [N/A], [N/A]", "warn", "names no driver"),
        ("", "warn", "no GPU"),
    ],
)
def test_what_nvidia_smi_may_say(rlx, tmp_path, printed, state, said):
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nprintf '%s' '{printed}'\n")
    program.chmod(0o755)
    done = rlx("doctor", "--json", env={"PATH": f"{program.parent}:{os.environ['PATH']}"})
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}["gpu"]
    assert found["state"] == state and said in found["found"]
