"""What is on the disk after `rlx prepare`, whatever became of it: killed, run twice, run beside another one."""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_core.config.errors import UserError
from verl_core.data.prepare import manifest, show_your_work
from verl_core.data.prepare.prepared import Prepared, Wanted
from verl_core.data.prepare.writer import write

KILLED = """
import os, signal, sys
from verl_core.data.prepare import job, writer
original, left = getattr(writer, sys.argv[1]), [int(sys.argv[2])]
def counted(*args):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return original(*args)
setattr(writer, sys.argv[1], counted)
job.main(sys.argv[3:])
"""


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_manifest_says_what_was_asked_for_and_what_it_was_made_from(published, prepare, tmp_path):
    source, out = published("gsm8k"), tmp_path / "out"
    done = prepare("gsm8k", "--source", source, "--out", out, "--limit", 5)
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "manifest.json").read_text())
    train = source / "main" / "train-00000-of-00001.parquet"
    assert found["sources"][1] == {
        "name": "main/train-00000-of-00001.parquet",
        "bytes": train.stat().st_size,
        "sha256": hashlib.sha256(train.read_bytes()).hexdigest(),
    }
    assert len(found["sources"]) == 2  # and not the other variant's
    assert (found["format"], found["dataset"], found["limit"], found["options"], found["needs"]) == (
        manifest.FORMAT,
        "gsm8k",
        5,
        {},
        [],
    )


def test_needs_of_a_data_set_stand_in_the_manifest(tmp_path):
    prepared = Prepared({"train": [{"prompt": "p"}]}, "made", needs=("reasoning-gym",))
    write(Wanted("x:y"), prepared, tmp_path, lambda split: None, lambda: None)
    assert manifest.read(tmp_path)["needs"] == ["reasoning-gym"]


@pytest.mark.parametrize(("at", "calls"), [("_write_split", 1), ("_take_name", 0), ("_take_name", 1)])
def test_a_kill_leaves_whole_files_and_the_next_run_leaves_no_temporary(at, calls, prepare, tmp_path):
    """Killed while the second file is written, before the first name is taken, and between the two."""
    out = tmp_path / "out"
    prepare("show-your-work", "--out", out, "--limit", 3)
    old = bytes_of(out)
    command = [sys.executable, "-c", KILLED, at, str(calls), "show-your-work", "--out", str(out)]
    assert subprocess.run(command, capture_output=True).returncode == -9
    left = {name: content for name, content in bytes_of(out).items() if not name.startswith(".")}
    new = {split: pq.read_table(out / f"{split}.parquet").num_rows for split in ("train", "test")}
    assert new == {"train": 1699 if (at, calls) == ("_take_name", 1) else 3, "test": 3}
    assert left["manifest.json"] == old["manifest.json"]
    assert prepare("show-your-work", "--out", out).returncode == 0
    assert {path.name for path in out.iterdir()} == {"train.parquet", "test.parquet", "manifest.json"}


def test_a_second_run_waits_for_the_first(prepare, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    threading.Timer(0.3, os.close, [folder]).start()
    done = prepare("show-your-work", "--out", tmp_path, "--limit", 2)
    assert done.returncode == 0 and f"another `rlx prepare` is writing {tmp_path}" in done.stderr.replace("\n", " ")
    assert pq.read_table(tmp_path / "train.parquet").num_rows == 2


def test_a_split_that_is_made_no_longer_is_removed_and_a_users_file_is_not(tmp_path):
    def made(*splits):
        prepared = Prepared({split: [{"prompt": split}] for split in splits}, "made")
        return write(Wanted("x"), prepared, tmp_path, lambda split: None, lambda: None)[1]

    (tmp_path / "mine.parquet").write_text("mine")
    assert made("train", "test") is True
    assert made("train", "test") is False
    assert made("train") is True
    assert {path.name for path in tmp_path.iterdir()} == {"train.parquet", "manifest.json", "mine.parquet"}


def test_validate_counts_what_it_checked_and_needs_no_source_for_files_that_are_there(published, prepare, tmp_path):
    source, out = published("gsm8k"), tmp_path / "out"
    done = prepare("gsm8k", "--source", source, "--out", out, "--validate", "--json")
    counts = {"rows parsed": 2, "golds usable": 2, "worked answers right": 2}
    assert (done.returncode, json.loads(done.stdout)["validated"]) == (0, counts), done.stderr
    written = (out / "train.parquet").stat().st_mtime_ns
    (row,) = pq.read_table(out / "train.parquet").to_pylist()
    row["reward_model"]["ground_truth"] = "7"
    spoilt = [row, row | {"reward_model": {"style": "rule", "ground_truth": "no number"}}, row | {"prompt": None}]
    pq.write_table(pa.Table.from_pylist(spoilt), out / "train.parquet")
    done = prepare("gsm8k", "--out", out, "--validate", "--json")
    assert len(json.loads(done.stdout)["faults"]) == 4
    assert done.returncode == 1 and (out / "train.parquet").stat().st_mtime_ns > written
    file = out / "train.parquet"
    for said in (
        f"{file}: its SHA-256 is not the manifest's",
        f"{file} row 1: its own answer gets 0.0",
        f"{file} row 2: openai/gsm8k cannot score it",
        f"{file} row 3: prompt is null",
    ):
        assert said in done.stderr


def test_validate_checks_what_is_there_unless_another_is_asked_for(prepare, tmp_path):
    out = ("--out", tmp_path)
    assert prepare("countdown", "--count", "7", "--test-count", "3", *out).returncode == 0
    for words, count in [
        (("--validate",), 7),
        (("--count", "4", "--test-count", "3", "--validate"), 4),
        (("--limit", "2", "--validate"), 2),
    ]:
        done = prepare("countdown", *words, *out, "--json")
        assert json.loads(done.stdout)["files"]["train"]["rows"] == count, (words, done.stderr)


def test_validate_reads_pairs_and_demonstrations_as_their_algorithms_do(published, prepare, tmp_path):
    for form in ("pairs", "sft"):
        words = ("hh-rlhf", "--form", form, "--out", tmp_path / form)
        assert prepare(*words, "--source", published("hh-rlhf")).returncode == 0
        done = prepare(*words, "--validate", "--json")
        assert json.loads(done.stdout)["validated"] == {"rows parsed": 2}
        assert "unchanged" not in json.loads(done.stdout)  # nothing was prepared


def test_a_manifest_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(UserError, match="is no manifest of a data set"):
        manifest.read(tmp_path)


def test_the_embedded_task_is_not_read_from_files(tmp_path):
    with pytest.raises(UserError, match="is made, not read"):
        show_your_work.prepare(Wanted("show-your-work", tmp_path))
