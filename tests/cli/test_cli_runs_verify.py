"""`rlx runs verify`, and what `show` says of checkpoints: whole, missing, cut, changed, by name."""

import json
from pathlib import Path

import pytest

from verl_core.checkpoint import CheckpointStore
from verl_core.checkpoint.retention import Retention

RUN = "runs/demo/a-1"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three checkpoints, of which the last was written after going back."""
    run = tmp_path / RUN
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    store = CheckpointStore(run / "checkpoints", Retention(None, "val"))
    for step in (10, 20, 15):
        folder = store.begin(step)
        (folder / "actor").mkdir()
        (folder / "actor" / "engine.json").write_text('{"world_size": 2}')
        (folder / "trainer.json").write_text("{}")
        store.commit(step, step / 100)
    return run


def test_all_whole(rlx, run):
    done = rlx("runs", "verify", RUN, "--checksums")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        [str(step), "19", "B", "actor", "2", f"{step / 100:.4g}", "whole"] for step in (10, 15, 20)
    ]
    (alone,) = json.loads(rlx("runs", "verify", f"{RUN}/checkpoints/global_step_20", "--json").stdout)
    assert alone["step"] == 20 and alone["whole"]
    told = json.loads(rlx("runs", "verify", f"{RUN}/checkpoints", "--json").stdout)
    assert [(c["step"], c["whole"], c["newest"]) for c in told] == [
        (10, True, False),
        (15, True, True),
        (20, True, False),
    ]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (Path.unlink, "trainer.json is missing (2 bytes)"),
        (lambda file: file.write_text("{"), "trainer.json has 1 of 2 bytes"),
        (lambda file: file.write_text("[]"), "trainer.json is damaged (checksum differs)"),
        (lambda file: (file.parent / "manifest.json").write_text("{"), "manifest.json is unreadable"),
    ],
)
def test_the_newest_is_broken(rlx, run, harm, says):
    harm(run / "checkpoints" / "global_step_15" / "trainer.json")
    by_manifest = "manifest" in says  # which then says no more that it was written after step 20
    changed = "checksum" in says
    done = rlx("runs", "verify", RUN, "--checksums")
    assert done.returncode == (0 if by_manifest else 1)
    assert says in done.stdout
    if not by_manifest:
        assert f"the newest checkpoint, global_step_15, is broken: {says}" in done.stderr
        assert "whole are global_step_10, global_step_20" in done.stderr
    quick = rlx("runs", "verify", RUN, "--json")
    assert quick.returncode == (0 if by_manifest or changed else 1)
    assert [c["whole"] for c in json.loads(quick.stdout)] == [True, changed, True]


def test_a_broken_one_is_shown_and_listed(rlx, run):
    assert "(1 broken)" not in rlx("runs", "ls").stdout
    (run / "checkpoints" / "global_step_15" / "trainer.json").unlink()
    shown = rlx("runs", "show", RUN).stdout
    assert "global_step_15" in shown and "trainer.json is missing (2 bytes)" in shown
    assert [c["step"] for c in json.loads(rlx("runs", "show", RUN, "--json").stdout)["checkpoints"]] == [10, 15, 20]
    assert "20 (1 broken)" in rlx("runs", "ls").stdout


def test_a_newer_one_without_a_manifest_is_the_newest(rlx, run):
    (run / "checkpoints" / "global_step_30").mkdir()
    done = rlx("runs", "verify", RUN)
    assert done.returncode == 1
    assert "global_step_30, is broken: manifest.json is missing (the save did not finish)" in done.stderr


def test_nothing_there(rlx, tmp_path):
    done = rlx("runs", "verify", "nowhere")
    assert done.returncode == 1 and "there is no folder 'nowhere'" in done.stderr
