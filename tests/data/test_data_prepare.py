import errno
import gzip
import hashlib
import json
import os
import resource
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

from verl_core.config.schema import DataConfig
from verl_core.data.dataset import PromptDataset
from verl_core.data.prepare import gsm8k, writer
from verl_core.data.prepare.prepared import Wanted

ROWS = [
    {"question": "Tom has 1,000 pens and buys 5?", "answer": "1000+5 = <<1000+5=1005>>1005\n#### 1,005"},
    {"question": "Grüße −3?", "answer": "it falls\n#### -3"},
]


def write_source(folder, rows=ROWS):
    folder.mkdir(exist_ok=True)
    lines = "".join((r if isinstance(r, str) else json.dumps(r, ensure_ascii=False)) + "\n" for r in rows)
    (folder / "train.jsonl").write_text(lines, encoding="utf-8")
    with gzip.open(folder / "test.jsonl.gz", "wt", encoding="utf-8") as f:
        f.write(lines)
    return folder


def test_the_job_is_a_module_whose_stdout_is_json_and_whose_texts_are_utf8_in_any_locale(tmp_path):
    """Case D9: question with other letters, a minus sign U+2212 and an emoji, read and written in the C locale."""
    question = "Grüße 你好 \u22123 \U0001f600?"
    source = write_source(tmp_path / "src", [{"question": question, "answer": "#### 3"}])
    command = [sys.executable, "-m", "verl_core.data.prepare.job", "gsm8k", "--source", str(source), "--json"]
    plain = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=True, env=plain)
    assert json.loads(done.stdout)["files"]["train"]["rows"] == 1
    (row,) = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert row["extra_info"]["question"] == question and row["prompt"][0]["content"].startswith(question)


def test_gsm8k_from_a_folder_is_what_veRL_makes_and_loads_as_prompts(tmp_path, tokenizer, prepare):
    out = tmp_path / "out"
    done = prepare("gsm8k", "--source", write_source(tmp_path / "src"), "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(out / "train.parquet").to_pylist()
    assert rows[0] == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {
                "role": "user",
                "content": "Tom has 1,000 pens and buys 5? Let's think step by step and output the final answer after"
                ' "####".',
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1005"},
        "extra_info": {"split": "train", "index": 0, "answer": ROWS[0]["answer"], "question": ROWS[0]["question"]},
    }
    assert rows[1]["reward_model"]["ground_truth"] == "-3"
    manifest = json.loads((out / "manifest.json").read_text())
    for split in ("train", "test"):
        content = (out / f"{split}.parquet").read_bytes()
        assert manifest["files"][split]["sha256"] == hashlib.sha256(content).hexdigest()
        assert manifest["files"][split]["rows"] == 2
    assert json.loads(done.stdout)["files"] == manifest["files"]
    assert len(PromptDataset(str(out), DataConfig(), tokenizer, "val", 0)) == 2


def test_again_gives_the_same_bytes_and_leaves_the_files_alone(tmp_path, prepare):
    source, out = write_source(tmp_path / "src"), tmp_path / "out"
    prepare("gsm8k", "--source", source, "--out", out)
    before = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in out.iterdir()}
    done = prepare("gsm8k", "--source", source, "--out", out)
    assert done.stdout.splitlines()[0] == f"train: 2 rows, unchanged  {out}/train.parquet"
    assert {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in out.iterdir()} == before
    assert set(before) == {"train.parquet", "test.parquet", "manifest.json"}  # and no temporary file


def test_limit_keeps_the_first_rows(tmp_path, prepare):
    out = tmp_path / "out"
    done = prepare("gsm8k", "--source", write_source(tmp_path / "src"), "--out", out, "--limit", 1)
    assert done.stdout.splitlines() == [f"train: 1 rows  {out}/train.parquet", f"test: 1 rows  {out}/test.parquet"]
    assert pq.read_table(out / "test.parquet").num_rows == 1
    assert prepare("gsm8k", "--limit", 0).returncode == 2


def test_broken_rows_are_refused_with_file_and_line_and_nothing_is_written(tmp_path, prepare):
    source = write_source(
        tmp_path / "src", [ROWS[0], "{oops", {"question": "q"}, {"question": "q", "answer": "no gold"}]
    )
    done = prepare("gsm8k", "--source", source, "--out", tmp_path / "out")
    assert done.returncode == 1
    error = done.stderr.splitlines()[0]
    assert "train.jsonl row 2: not JSON" in error and "train.jsonl row 3: answer is missing" in error
    assert "train.jsonl row 4: answer has no `#### NUMBER`" in error and "test.jsonl.gz row 2" in error
    assert not (tmp_path / "out").exists()


def test_an_unreachable_hub_says_what_to_do(tmp_path):
    command = [sys.executable, "-m", "verl_core.data.prepare.job", "gsm8k", "--out", str(tmp_path / "out")]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 1 and "openai/gsm8k cannot be fetched" in done.stderr and "--source" in done.stderr


def test_absent_files_are_named(tmp_path, prepare):
    done = prepare("gsm8k", "--source", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 1 and f"{tmp_path} has no train file: none of train.parquet" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_exit_1_and_loses_nothing(tmp_path, prepare):
    blocker = tmp_path / "file"
    blocker.write_text("mine")
    done = prepare("show-your-work", "--out", blocker / "out")
    assert done.returncode == 1 and "cannot be written" in done.stderr and "--out" in done.stderr
    assert blocker.read_text() == "mine"


def test_unknown_names_and_options_are_refused(tmp_path, prepare):
    for words, said in (
        (["gsm9k"], "no dataset named 'gsm9k'"),
        (["gsm8k:easy"], "gsm8k:easy is no data set"),
        (["gsm8k", "--form", "pairs"], "gsm8k has no option --form"),
        (["gsm8k", "--limt=3"], "did you mean --limit?"),
    ):
        done = prepare(*words, "--out", tmp_path / "out")
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "out").exists()


def test_the_embedded_task_has_no_source(tmp_path, prepare):
    done = prepare("show-your-work", "--source", tmp_path)
    assert done.returncode == 1 and "--source" in done.stderr


def test_the_hubs_own_layout_is_read(tmp_path):
    (tmp_path / "main").mkdir()
    for split in ("train", "test"):
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "main" / f"{split}-00000-of-00001.parquet")
    for rows in gsm8k.prepare(Wanted("gsm8k", tmp_path)).splits.values():
        assert [r["reward_model"]["ground_truth"] for r in rows] == ["1005", "-3"]


def test_a_full_disk_is_exit_5_another_fault_1_and_the_earlier_files_are_still_whole(tmp_path, prepare, monkeypatch):
    source, out = write_source(tmp_path / "src"), tmp_path / "out"
    prepare("gsm8k", "--source", source, "--out", out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    write_source(tmp_path / "src", ROWS[:1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # every larger file fails
    try:
        done = prepare("gsm8k", "--source", source, "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.returncode == 1 and f"{out} cannot be written" in done.stderr
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "_sync", full)
    done = prepare("gsm8k", "--source", source, "--out", out)
    assert done.returncode == 5 and f"error: no space left for {out}" in done.stderr
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
