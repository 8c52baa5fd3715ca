"""Runs repeat bit for bit: the same seed twice, across kill -9 and resume, across a requeue."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import records, run_dir_of


@pytest.fixture
def unbroken(train_here, small):
    return train_here(small("smoke", steps=6, trainer__experiment_name="unbroken"))


def test_the_same_seed_gives_the_same_metrics_and_another_seed_does_not(rlx, small, unbroken, train_here, tmp_path):
    again = rlx(*small("smoke", steps=6, trainer__experiment_name="again"), "--json")
    assert again.returncode == 0, again.stderr
    assert records(run_dir_of(tmp_path, name="again")) == unbroken
    assert len(unbroken) == 7 and all("actor/grad_norm" in line for line in unbroken[1:])
    other = train_here(small("smoke", steps=2, trainer__experiment_name="other", trainer__seed=1))
    assert other[1] != unbroken[1]

    summary = json.loads(again.stdout)  # one object and no more
    assert summary["steps"] == 6 and set(summary) >= {"run_dir", "steps", "seconds", "val", "tokens_per_s"}
    assert set(summary["val"]) == {"first", "last"} and {"rollout", "update"} <= set(summary["seconds"])


def test_kill_9_and_resume_equals_the_unbroken_run(rlx, small, start, unbroken, tmp_path: Path):
    run_dir = run_dir_of(tmp_path)
    words = small("smoke", steps=6)
    rng = random.Random(7)
    process = start(*words)
    wait_for(run_dir / "checkpoints" / "latest", process)
    time.sleep(rng.random() * 0.5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(records(run_dir)) < 7, "the run ended before it could be killed"
    done = rlx(*words, "--resume")
    assert done.returncode == 0, done.stderr
    assert records(run_dir) == unbroken
    assert [p.name for p in sorted((run_dir / "rollouts").iterdir())] == [f"step_{n}.jsonl" for n in range(1, 7)]


@pytest.mark.slow
def test_five_kills_of_one_run_change_nothing(rlx, small, start, train_here, tmp_path: Path):
    """Each at a random moment after the step that the run had gone on from, most of them in or beside a save."""
    words = small("smoke", steps=40, trainer__save_freq=1, trainer__test_freq=0, data__val_files="null")
    unbroken = train_here([*words, "trainer.experiment_name=unbroken"])
    latest, seen, rng = run_dir_of(tmp_path) / "checkpoints" / "latest", "", random.Random(11)
    for kill in range(5):
        process = start(*words, *(["--resume"] if kill else []))
        while not latest.exists() or latest.read_text() == seen:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        time.sleep(rng.random() * 0.4)
        process.kill()
        assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
        seen = latest.read_text()
    done = rlx(*words, "--resume")
    assert done.returncode == 0, done.stderr
    assert records(run_dir_of(tmp_path)) == unbroken


def test_resume_twice_with_a_lower_learning_rate_goes_on_in_the_same_run(train_here, small, tmp_path: Path):
    """Cases G3 and S4: a changed value is no obstacle, and the last step is saved once."""
    train_here(small("smoke", steps=3))
    lines = train_here(small("smoke", steps=5, actor__optim__lr=1e-5), resume=True)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert lines[-1]["actor/lr"] == pytest.approx(1e-5)
    steps = sorted(p.name for p in (run_dir_of(tmp_path) / "checkpoints").glob("global_step_*"))
    assert steps == ["global_step_2", "global_step_3", "global_step_4", "global_step_5"]


def test_resume_without_a_checkpoint_starts_fresh_with_a_warning(train_here, small, caplog):
    assert [line["step"] for line in train_here(small("smoke", steps=1), resume=True)] == [0, 1]
    assert "no whole checkpoint in" in caplog.text and "starts from the beginning" in caplog.text


def test_a_run_that_has_taken_all_its_steps_resumes_to_a_clean_end_that_says_so(rlx, train_here, small, tmp_path: Path):
    before = train_here(small("smoke", steps=2))
    done = rlx(*small("smoke", steps=2), "--resume")
    assert done.returncode == 0, done.stderr
    assert "nothing left to do: 2 of 2 steps are done" in done.stderr
    assert records(run_dir_of(tmp_path)) == before
    assert json.loads((run_dir_of(tmp_path) / "summary.json").read_text())["exit_reason"] == "finished"


def test_without_validation_and_checkpoints_a_run_leaves_only_its_records(train_here, small, tmp_path: Path):
    lines = train_here(small("smoke", steps=2, data__val_files="null", trainer__test_freq=0, trainer__save_freq=0))
    assert [line["step"] for line in lines] == [1, 2]
    assert not any(name.startswith("val") for line in lines for name in line)
    assert not list((run_dir_of(tmp_path) / "checkpoints").glob("global_step_*"))


def test_validation_after_every_third_step_and_the_last_alone_writes_no_extra_line(train_here, small, tmp_path: Path):
    """Case S9: evaluated at the right steps, each once."""
    words = small("smoke", steps=4, trainer__test_freq=3, trainer__save_freq=-1, trainer__val_before_train="false")
    lines = train_here(words)
    assert [line["step"] for line in lines if "val/test_score/rlx/show-your-work" in line] == [3, 4]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    steps = [p.name for p in (run_dir_of(tmp_path) / "checkpoints").glob("global_step_*")]
    assert steps == ["global_step_4"]


def test_resume_over_other_prompts_is_refused_in_one_line(rlx, train_here, small, tmp_path: Path):
    """Case S3: a position in one data set is not applied to another."""
    train_here(small("smoke", steps=2))
    done = rlx(*small("smoke", steps=4, data__train_max_samples=100), "--resume")
    assert done.returncode == 1
    assert "the training prompts are not those of the checkpoint" in done.stderr
    assert (run_dir_of(tmp_path) / "checkpoints" / "global_step_2" / "manifest.json").exists()


def test_a_name_that_exists_is_refused_and_nothing_is_lost(rlx, train_here, small, tmp_path: Path):
    train_here(small("smoke", steps=1))
    before = (run_dir_of(tmp_path) / "metrics.jsonl").read_bytes()
    done = rlx(*small("smoke", steps=1))
    assert done.returncode == 1 and "hint:" in done.stderr
    assert (run_dir_of(tmp_path) / "metrics.jsonl").read_bytes() == before


def wait_for(path: Path, process, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


def test_of_two_that_resume_one_run_at_once_the_second_is_refused_and_the_first_goes_on(
    train_here, small, start, tmp_path
):
    train_here(small("smoke", steps=2))
    longer = [*small("smoke", steps=30, data__val_files="null"), "--resume"]
    both = [start(*longer), start(*longer)]  # mostly both pass the command's own look before either job has begun
    said = [process.communicate(timeout=180)[1] for process in both]
    codes = [process.returncode for process in both]
    assert sorted(codes) == [0, 1], said
    refused = said[codes.index(1)]
    run = run_dir_of(tmp_path).relative_to(tmp_path)
    assert f"error: another rlx is at work in {run}" in refused or f"is training {run}" in refused
    assert [line["step"] for line in records(run_dir_of(tmp_path))] == list(range(31))
