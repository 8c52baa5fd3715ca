"""Every tracker for real, and the promise that none of them stops a run."""

import io
import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from verl_core.config.errors import UserError
from verl_core.config.schema import TrainerConfig
from verl_core.tracking.console import ConsoleTracker, clock
from verl_core.tracking.files import read_jsonl
from verl_core.tracking.jsonl import JsonlTracker
from verl_core.tracking.trackers import Trackers, build_trackers

METRICS = {
    "critic/score/mean": 0.1 + 0.2,
    "response_length/mean": 16.25,
    "actor/ppo_kl": 1.2e-3,
    "actor/entropy": 0.21,
    "actor/grad_norm": 0.42,
    "perf/throughput": 21300.4,
    "timing_s/step": 0.25,
    "perf/total_num_tokens": 5700,
}


@pytest.fixture
def no_key(monkeypatch, tmp_path):
    """No key anywhere, as on a machine without an account; wandb reads its environment once, so it starts afresh."""
    wandb.teardown()
    for name in [n for n in os.environ if n.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(e.step, e.value) for e in events.Scalars(name)]


def test_jsonl_keeps_every_bit_and_sorts(tmp_path):
    values = {"b": 0.1 + 0.2, "a": 1e-300, "c/x": 1 / 3, "n": 7}
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.log(1, values)
    line = (tmp_path / "metrics.jsonl").read_text()  # readable before finish: flushed each step
    assert line.endswith("\n") and list(json.loads(line)) == ["step", "a", "b", "c/x", "n"]
    assert json.loads(line) == {"step": 1, **values}
    assert isinstance(json.loads(line)["n"], int)
    tracker.finish(0)


def test_equal_values_give_equal_bytes_in_any_order(tmp_path):
    for name, metrics in (("a", METRICS), ("b", dict(reversed(METRICS.items())))):
        Trackers([JsonlTracker(tmp_path / name)]).log(3, metrics)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_non_finite_is_null_and_counted(tmp_path, caplog):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    tracker.log(1, {"x": math.nan, "y": math.inf, "z": 1.0})
    tracker.log(2, {"x": -math.inf})
    assert list(read_jsonl(tmp_path / "m.jsonl")) == [
        {"step": 1, "x": None, "y": None, "z": 1.0},
        {"step": 2, "x": None},
    ]
    assert "step 1: x, y not finite" in caplog.text and "(3 so far in m.jsonl)" in caplog.text


def test_a_reader_that_leaves_costs_the_step_lines_and_not_the_run(tmp_path, caplog):
    ours, theirs = os.pipe()
    os.close(ours)
    stream = io.TextIOWrapper(os.fdopen(theirs, "wb", buffering=0), write_through=True)
    trackers = Trackers([JsonlTracker(tmp_path / "m.jsonl"), ConsoleTracker(stream, total_steps=2)])
    trackers.log(1, METRICS)
    trackers.log(2, METRICS)
    assert [line["step"] for line in read_jsonl(tmp_path / "m.jsonl")] == [1, 2]
    assert trackers.names == ["jsonl"] and caplog.text.count("console failed") == 1


def test_jsonl_waits_out_a_failing_write(tmp_path, caplog):
    """A file-size limit stands for a full disk: the run goes on, and the lines come once there is room."""
    code = f"""
import resource, signal
from pathlib import Path
from verl_core.tracking.jsonl import JsonlTracker
from verl_core.tracking.trackers import Trackers
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
t = Trackers([JsonlTracker(Path({str(tmp_path / "m.jsonl")!r}))])
t.log(1, {{"x": 1.0}})
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (30, hard))
t.log(2, {{"x": 2.0}}); t.log(3, {{"x": 3.0}})
print(Path({str(tmp_path / "m.jsonl")!r}).read_text().count(chr(10)))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
t.log(4, {{"x": 4.0}}); t.finish(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
    assert done.stderr.count("will try again") == 1  # said once
    assert [line["step"] for line in read_jsonl(tmp_path / "m.jsonl")] == [1, 2, 3, 4]


def test_console_line():
    out = io.StringIO()
    console = ConsoleTracker(out, total_steps=60)
    console.log(12, METRICS | {"val/test_score/show-your-work": 0.96})
    line = out.getvalue()
    assert line.startswith("step 12/60  reward 0.300  val 0.960  length 16.2  kl 0.0012  entropy 0.210  grad 0.42")
    assert "tok/s 21,300" in line and line.endswith("  0:12 left\n") and line.count("\n") == 1
    assert "\x1b" not in line
    console.log(13, {"actor/ppo_kl": -4e-8})  # rounding, not a negative divergence
    assert "step 13/60  kl 0.0000" in out.getvalue()


def test_console_names_sources_when_there_are_several():
    out = io.StringIO()
    ConsoleTracker(out, total_steps=None).log(13, {"val/test_score/a": 0.5, "val/test_score/b": 0.25})
    assert out.getvalue() == "step 13  val[a] 0.500  val[b] 0.250\n"


def test_console_tells_the_time_left_from_the_steps_it_saw():
    out = io.StringIO()
    console = ConsoleTracker(out, total_steps=20)
    console.log(10, {})  # validation, also after a resume: no step
    for step, seconds in ((11, 6.0), (12, 4.0), (20, 5.0)):
        console.log(step, {"timing_s/step": seconds})
    assert out.getvalue() == "step 10/20\nstep 11/20  0:54 left\nstep 12/20  0:40 left\nstep 20/20\n"
    assert clock(3661) == "1:01:01"


def test_step_lines_go_to_stdout_or_under_json_to_stderr(tmp_path, capsys):
    for json_mode in (False, True):
        build_trackers(TrainerConfig(logger=["console"]), tmp_path, None, json_mode).log(1, METRICS)
        out, err = capsys.readouterr()
        said, silent = (err, out) if json_mode else (out, err)
        assert said.startswith("step 1 ") and silent == ""
    assert len(list(read_jsonl(tmp_path / "metrics.jsonl"))) == 2  # jsonl without being asked for


def test_tensorboard_reads_back_and_purges_on_resume(tmp_path):
    cfg = TrainerConfig(logger=["tensorboard"])
    first = build_trackers(cfg, tmp_path, None, True)
    for step in range(1, 5):
        first.log(step, {"critic/score/mean": torch.tensor(step / 8)})
    first.finish()
    again = build_trackers(cfg, tmp_path, 2, True)
    again.log(3, {"critic/score/mean": 0.5})
    again.finish()
    assert scalars(tmp_path / "tensorboard", "critic/score/mean") == [(1, 0.125), (2, 0.25), (3, 0.5)]


def test_a_tracker_that_fails_to_start_is_left_out(tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("in the way")
    trackers = build_trackers(TrainerConfig(logger=["tensorboard", "console"]), tmp_path, None, True)
    assert trackers.names == ["jsonl", "console"]
    assert caplog.text.count("tracker tensorboard failed to start") == 1


def test_a_tracker_that_fails_later_is_dropped_once(tmp_path, caplog):
    stream = (tmp_path / "out").open("w")
    trackers = Trackers([ConsoleTracker(stream, None), JsonlTracker(tmp_path / "m.jsonl")])
    trackers.log(1, METRICS)
    stream.close()
    for step in (2, 3):
        trackers.log(step, METRICS)
    assert trackers.names == ["jsonl"]
    assert caplog.text.count("tracker console failed at step 2, dropped") == 1
    assert [line["step"] for line in read_jsonl(tmp_path / "m.jsonl")] == [1, 2, 3]


def test_an_unwritable_record_is_the_users_error(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl"):
        build_trackers(TrainerConfig(), tmp_path, None, True)


def test_wandb_offline_holds_the_metrics_and_resumes_under_one_id(tmp_path, no_key, caplog):
    cfg = TrainerConfig(logger=["wandb"], project_name="p", experiment_name="e")
    for resume, lr in ((None, 1e-4), (1, 5e-5)):  # resumed with another learning rate
        trackers = build_trackers(cfg, tmp_path, resume, True, config={"actor": {"optim": {"lr": lr}}})
        assert trackers.names == ["jsonl", "wandb"]
        trackers.log((resume or 0) + 1, METRICS)
        trackers.finish()
    assert "no API key" in caplog.text
    assert [r for r in caplog.records if r.levelno > logging.WARNING or "failed" in r.message] == []
    run_id = (tmp_path / "wandb_run_id").read_text().strip()
    files = list((tmp_path / "wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"))
    assert files and all(b"critic/score/mean" in f.read_bytes() for f in files)


def test_wandb_without_a_route_goes_offline(tmp_path, no_key, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr("verl_core.tracking.wandb_run.INIT_TIMEOUT_S", 3.0)
    trackers = build_trackers(TrainerConfig(logger=["wandb"]), tmp_path, None, True)
    trackers.log(1, METRICS)
    trackers.finish()
    assert "cannot reach the server" in caplog.text
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_a_misspelt_wandb_mode_is_refused_before_anything_starts(tmp_path, no_key, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offlien")
    with pytest.raises(UserError, match="WANDB_MODE=offlien: not one of online, offline"):
        build_trackers(TrainerConfig(logger=["wandb"]), tmp_path, None, True)
