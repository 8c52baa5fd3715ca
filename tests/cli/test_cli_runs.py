"""`rlx runs ls|show` read JSON files; torn and missing ones are no reason to fail."""

import json

import pytest

from rlx import run_records

SUMMARY = {
    "steps": 60,
    "seconds": {"warmup": 17.0, "rollout": 4.0},
    "val": {"first": 0.04, "last": 0.975},
    "tokens_per_s": 9000.0,
    "exit_reason": "finished",
}


@pytest.fixture
def two_runs(tmp_path):
    """One finished run, and a later one whose process was killed while it wrote a line."""
    for name, started in (("b-1", "2026-01-01T00:00:00Z"), ("a-1", "2026-01-02T00:00:00Z")):
        run = tmp_path / "runs" / "demo" / name
        run.mkdir(parents=True)
        record = {"profile": name[0], "started": started, "argv": ["rlx", "train", name[0]], "git": None}
        (run / "run.json").write_text(json.dumps(record))
    (tmp_path / "runs/demo/b-1/summary.json").write_text(json.dumps(SUMMARY))
    (tmp_path / "runs/demo/a-1/metrics.jsonl").write_text(
        '{"step": 6, "actor/entropy": 0.5}\n{"step": 7, "actor/entropy": 0.25}\n{"st'
    )
    (tmp_path / "runs/demo/not-a-run").mkdir()
    return tmp_path / "runs" / "demo"


def test_ls_is_oldest_first_with_how_each_ended(rlx, two_runs):
    rows = json.loads(rlx("runs", "ls", "--json").stdout)
    assert [(row["run"], row["steps"], row["state"]) for row in rows] == [
        ("runs/demo/b-1", 60, "finished"),
        ("runs/demo/a-1", 7, "unfinished"),
    ]
    lines = rlx("runs", "ls").stdout.splitlines()
    assert lines[1].split() == ["runs/demo/b-1", "b", "2026-01-01T00:00:00Z", "60", "0.040", "->", "0.975", "finished"]


def test_show(rlx, two_runs):
    shown = rlx("runs", "show", "runs/demo/a-1").stdout
    assert "actor/entropy  0.25" in shown and "rlx train a" in shown
    assert json.loads(rlx("runs", "show", "runs/demo/b-1", "--json").stdout)["summary"] == SUMMARY


def test_no_runs_is_no_error(rlx):
    done = rlx("runs", "ls")
    assert (done.returncode, done.stdout) == (0, "")
    assert "rlx train smoke" in done.stderr


@pytest.mark.parametrize("command", ["show", "plot"])
def test_a_folder_that_is_no_run(rlx, two_runs, command):
    done = rlx("runs", command, "runs/demo/not-a-run")
    assert done.returncode == 1
    assert "error: runs/demo/not-a-run is not a run directory" in done.stderr


def test_last_metrics_of_a_long_file(tmp_path):
    line = json.dumps({"step": 1, "pad": "x" * 1000}) + "\n"
    (tmp_path / "metrics.jsonl").write_text(line * 500 + '{"step": 501}\n')
    assert run_records.last_metrics(tmp_path) == {"step": 501}
