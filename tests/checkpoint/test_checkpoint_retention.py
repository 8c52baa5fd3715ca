"""Which checkpoints stay: the newest ones and the best, of equals the newest, over resumes, beside what is not ours."""

import json
import math
import shutil
from pathlib import Path

import pytest

from verl_core.checkpoint import CheckpointStore
from verl_core.checkpoint.retention import Retention

METRIC = "val/test_score/gsm8k"


def save(folder: Path, step: int, value: float | None, keep: Retention) -> None:
    store = CheckpointStore(folder, keep)  # a new one each time, as of a resumed run
    (store.begin(step) / "trainer.json").write_text("{}")
    store.commit(step, value)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("global_step_")) for path in folder.glob("global_step_*"))


@pytest.mark.parametrize(
    ("keep", "values", "left"),
    [
        (Retention(1, METRIC), [0.1, 0.5, 0.3, 0.2], [2, 4]),
        (Retention(1, METRIC, "min"), [0.1, 0.5, 0.3, 0.2], [1, 4]),
        (Retention(2, METRIC), [0.5, 0.5, 0.3, 0.2], [2, 3, 4]),  # case K17: of equals the newest
        (Retention(2, METRIC), [0.1, 0.2, 0.3, 0.4], [3, 4]),  # the best is one of the newest
        (Retention(1, METRIC), [None, 0.2, math.nan, None], [2, 4]),  # no value, or none that can be compared
        (Retention(1, METRIC), [None, None, None, None], [4]),
        (Retention(1), [0.9, 0.5, 0.3, 0.2], [4]),
        (Retention(None, METRIC), [0.9, 0.5, 0.3, 0.2], [1, 2, 3, 4]),
    ],
)
def test_what_is_left_of_four(tmp_path, keep, values, left):
    for step, value in enumerate(values, start=1):
        save(tmp_path, step, value, keep)
    assert steps(tmp_path) == left


def test_another_metric_after_a_resume_starts_over(tmp_path):
    for step, value in enumerate([0.9, 0.1], start=1):
        save(tmp_path, step, value, Retention(1, METRIC))
    assert steps(tmp_path) == [1, 2]
    save(tmp_path, 3, 5.0, Retention(1, "actor/loss", "min"))
    save(tmp_path, 4, 7.0, Retention(1, "actor/loss", "min"))
    assert steps(tmp_path) == [3, 4]


def test_the_best_that_broke_does_not_outlive_a_whole_one(tmp_path):
    """A broken folder is nobody's best; it is left for a person to look at, and the next whole ones are kept."""
    keep = Retention(1, METRIC)
    save(tmp_path, 1, 0.9, keep)
    (tmp_path / "global_step_1" / "trainer.json").unlink()
    for step, value in ((2, 0.5), (3, 0.4), (4, 0.3)):
        save(tmp_path, step, value, keep)
    assert steps(tmp_path) == [1, 2, 4]


def test_the_manifest_says_the_value(tmp_path):
    save(tmp_path, 1, 0.25, Retention(1, METRIC))
    assert json.loads((tmp_path / "global_step_1/manifest.json").read_text())["score"] == {
        "metric": METRIC,
        "value": 0.25,
    }


def test_copies_under_other_steps_names_stay_and_are_not_counted(tmp_path, caplog):
    keep = Retention(1, METRIC)
    save(tmp_path, 1, 0.9, keep)
    shutil.copytree(tmp_path / "global_step_1", tmp_path / "global_step_4")
    for step in (2, 3):
        save(tmp_path, step, 0.1, keep)
    assert steps(tmp_path) == [1, 3, 4], "the best itself stays, not the copy instead of it"
    save(tmp_path, 4, 0.2, keep)
    assert "is a copy of the checkpoint of step 1: it is kept as global_step_4.foreign-" in caplog.text
    left = sorted(path.name.partition(".")[0] for path in tmp_path.glob("global_step_*"))
    assert left == ["global_step_1", "global_step_4", "global_step_4"]


def test_a_checkpoint_that_was_moved_to_another_disk_stays_there(tmp_path, caplog):
    folder, moved = tmp_path / "checkpoints", tmp_path / "moved"
    save(folder, 1, None, Retention(1))
    (folder / "global_step_1").rename(moved)
    (folder / "global_step_1").symlink_to(moved)
    save(folder, 2, None, Retention(1))
    assert {path.name for path in folder.iterdir()} == {"global_step_2", "latest"} and "could not" not in caplog.text
    assert {path.name for path in moved.iterdir()} == {"manifest.json", "trainer.json"}


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_whatever_has_the_name_of_a_step_that_is_saved_is_kept_aside(tmp_path, caplog, make):
    make(tmp_path / "global_step_1")
    save(tmp_path, 1, None, Retention(1))
    save(tmp_path, 2, None, Retention(1))
    assert "is not of rlx (no manifest.json): it is kept as global_step_1.foreign-" in caplog.text
    (aside,) = tmp_path.glob("global_step_1*")
    assert aside.name.startswith("global_step_1.foreign-") and CheckpointStore(tmp_path).latest().name[-1] == "2"
