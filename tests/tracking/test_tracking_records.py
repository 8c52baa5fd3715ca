"""The run directory: cut back on resume, sampled answers, summary, log."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from verl_core.config.errors import UserError
from verl_core.tracking.files import read_json, read_jsonl, write_atomic
from verl_core.tracking.jsonl import JsonlTracker
from verl_core.tracking.records import RunRecords, spread
from verl_core.tracking.run_log import run_logging
from verl_core.tracking.timing import Timer


def write_steps(path: Path, steps, **metrics) -> None:
    tracker = JsonlTracker(path)
    for step in steps:
        tracker.log(step, {"x": step / 7, **metrics})
    tracker.finish(0)


def rollout_steps(run_dir: Path) -> set[str]:
    return {p.name for p in (run_dir / "rollouts").iterdir()}


def test_cut_back_reads_as_if_the_run_had_never_stopped(tmp_path):
    unbroken = tmp_path / "unbroken.jsonl"
    write_steps(unbroken, range(1, 6))
    path = tmp_path / "metrics.jsonl"
    write_steps(path, range(1, 5))
    with path.open("a") as f:
        f.write('{"step": 5, "x": 0.7')  # what kill -9 leaves
    records = RunRecords(tmp_path)
    for step in (2, 3, 10):
        records.write_rollouts(step, [{"score": 1.0}], n=1)
    (tmp_path / "rollouts" / "step_notes.jsonl").write_text("a person's own file")

    records.cut_back(2)
    assert [line["step"] for line in read_jsonl(path)] == [1, 2]
    assert rollout_steps(tmp_path) == {"step_2.jsonl", "step_notes.jsonl"}
    write_steps(path, range(3, 6))
    assert path.read_bytes() == unbroken.read_bytes()


def test_cut_back_to_nothing_when_there_is_no_checkpoint(tmp_path):
    write_steps(tmp_path / "metrics.jsonl", range(3))
    RunRecords(tmp_path).cut_back(-1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_a_broken_line_is_named_and_nothing_is_lost(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2: not JSON: 'nonsense'"):
        RunRecords(tmp_path).cut_back(1)
    assert path.read_text().count("\n") == 3


def test_killed_writer_leaves_every_finished_step(tmp_path):
    """kill -9 in the middle of a stream of steps: whole lines 1..n without a hole."""
    code = f"""
import itertools
from pathlib import Path
from typing import Any
from verl_core.tracking.jsonl import JsonlTracker
t = JsonlTracker(Path({str(tmp_path / "m.jsonl")!r}))
for step in itertools.count(1):
    t.log(step, {{f"k{{i}}": step / 3 for i in range(200)}})
    print(step, flush=True)
"""
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    said = [writer.stdout.readline() for _ in range(50)]
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    steps = [line["step"] for line in read_jsonl(tmp_path / "m.jsonl")]
    assert len(said) == 50 and len(steps) >= 50 and steps == list(range(1, len(steps) + 1))


def test_write_atomic_leaves_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "x" * 100_000 + "\ud800")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["f"]


def test_run_json_keeps_the_commands_part_and_counts_attempts(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"argv": ["rlx", "train", "smoke"], "git": "abc"}))
    for resume in (None, 7):
        RunRecords(tmp_path).start({"name": "some cpu"}, {"train": "ab12"}, resume)
    record = read_json(tmp_path / "run.json")
    assert record["argv"] == ["rlx", "train", "smoke"] and record["hardware"] == {"name": "some cpu"}
    assert record["packages"]["torch"] == torch.__version__.split("+")[0]
    assert record["data"] == {"train": "ab12"}
    assert [(a["pid"], a["resume_step"]) for a in record["attempts"]] == [(os.getpid(), None), (os.getpid(), 7)]


@pytest.mark.parametrize(
    ("count", "n", "chosen"), [(16, 4, [0, 4, 8, 12]), (5, -1, [0, 1, 2, 3, 4]), (2, 9, [0, 1]), (7, 1, [0])]
)
def test_spread(count, n, chosen):
    assert spread(count, n) == chosen


def test_rollouts_take_what_parquet_and_torch_hand_over(tmp_path):
    rows: list[dict[str, Any]] = [
        {
            "text": "héllo",
            "score": torch.tensor(0.5),
            "extra_info": {"a": np.arange(2), "b": np.float32(1)},
            "logp": float("nan"),
        },
        {"text": "second"},
    ]
    RunRecords(tmp_path).write_rollouts(4, rows, n=-1)
    assert list(read_jsonl(tmp_path / "rollouts" / "step_4.jsonl")) == [
        {"text": "héllo", "score": 0.5, "extra_info": {"a": [0, 1], "b": 1.0}, "logp": None},
        {"text": "second"},
    ]
    RunRecords(tmp_path).write_rollouts(5, rows, n=0)
    assert rollout_steps(tmp_path) == {"step_4.jsonl"}


def test_rollouts_that_cannot_be_written_do_not_stop_the_run(tmp_path, caplog):
    (tmp_path / "rollouts").write_text("in the way")
    RunRecords(tmp_path).write_rollouts(4, [{"a": 1}], n=1)
    assert "rollouts of step 4 not written" in caplog.text


def test_summary_by_hand(tmp_path):
    write_steps(tmp_path / "warmup.jsonl", range(1, 4), **{"timing_s/step": 0.5})
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.log(0, {"val/test_score/a": 0.0, "val/test_score/b": 0.5, "timing_s/testing": 0.25})
    for step in (1, 2):
        tracker.log(
            step,
            {"timing_s/gen": 1.0, "timing_s/update_actor": 2.0, "timing_s/update_critic": 0.5, "timing_s/reward": 0.125}
            | {"timing_s/step": 4.0, "perf/total_num_tokens": 300, "perf/time_per_step": 4.0},
        )
    tracker.log(2, {"val/test_score/a": 1.0, "val/test_score/b": 0.5})
    tracker.finish(0)
    summary = RunRecords(tmp_path).finish("finished", {"timing_s/save_checkpoint": 0.75})
    assert summary == read_json(tmp_path / "summary.json")
    assert summary["steps"] == 2 and summary["exit_reason"] == "finished" and summary["run_dir"] == str(tmp_path)
    assert summary["seconds"] == {
        "warmup": 1.5, "validation": 0.25, "rollout": 2.0, "update": 5.0, "reward": 0.25, "steps": 8.0,
        "checkpoint": 0.75,
    }  # fmt: skip
    assert summary["val"] == {"first": 0.25, "last": 0.75}
    assert summary["tokens_per_s"] == 75.0


def test_summary_of_a_run_that_took_no_step(tmp_path):
    summary = RunRecords(tmp_path).finish("failed: no data")
    assert (summary["steps"], summary["val"], summary["tokens_per_s"], summary["seconds"]) == (0, None, None, {})


def test_timer_measures_phases_and_rates():
    timer = Timer()
    time.sleep(0.03)
    timer.begin_step()  # set-up is not part of the first step
    for _ in range(2):
        with timer.phase("gen"):
            time.sleep(0.01)
    with pytest.raises(RuntimeError), timer.phase("update_actor"):
        time.sleep(0.01)
        raise RuntimeError
    timer.add("reward", 0.5)
    m = timer.end_step(tokens=200, response_tokens=50, ranks=2)
    assert 0.02 <= m["timing_s/gen"] < m["timing_s/step"] and m["timing_s/update_actor"] >= 0.01
    assert m["timing_per_token_ms/gen"] == 1000 * m["timing_s/gen"] / 50
    assert m["timing_per_token_ms/update_actor"] == 1000 * m["timing_s/update_actor"] / 200
    assert "timing_per_token_ms/reward" not in m and m["timing_s/reward"] == 0.5
    assert m["perf/throughput"] == 200 / m["perf/time_per_step"] / 2 and m["perf/total_num_tokens"] == 200
    assert timer.end_step(tokens=1)["timing_s/step"] < 0.02  # every step starts afresh
    timer.add("testing", 0.5)
    assert timer.end_step() == {"timing_s/testing": 0.5}  # validation before the first step is no step
    with timer.phase("save_checkpoint"):
        time.sleep(0.01)
    assert (
        set(timer.unlogged()) == {"timing_s/save_checkpoint"} and timer.unlogged()["timing_s/save_checkpoint"] >= 0.01
    )


def test_log_goes_to_the_file_and_warnings_to_stderr_once(tmp_path, capsys):
    log = logging.getLogger("verl_core.somewhere")
    with run_logging(tmp_path):
        log.info("quiet")
        log.warning("loud %d", 7)
        log.debug("silent")
        warnings.warn("from a library", UserWarning, stacklevel=1)
    log.warning("after the run")
    text = (tmp_path / "train.log").read_text()
    assert "INFO verl_core.somewhere: quiet" in text and "loud 7" in text and "from a library" in text
    assert "silent" not in text and "after" not in text
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("warning: loud 7\n") and "quiet" not in err and "library" not in err
