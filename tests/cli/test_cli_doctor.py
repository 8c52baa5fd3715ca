"""`rlx doctor`: one finding a check, and exit 4 when one fails."""

import json


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
