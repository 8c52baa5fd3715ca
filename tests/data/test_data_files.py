import gzip
import json
import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_core.config.errors import UserError
from verl_core.data.files import read_records, resolve


def names(paths):
    return [p.name for p in paths]


@pytest.fixture
def folder(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "c.json", "notes.txt"):
        (tmp_path / name).write_text("[]" if name == "c.json" else "")
    return tmp_path


def test_path_list_folder_glob_and_home_are_all_accepted(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert names(resolve(str(folder / "a.jsonl"), "train")) == ["a.jsonl"]
    assert names(resolve([str(folder / "b.jsonl"), str(folder / "a.jsonl")], "train")) == ["b.jsonl", "a.jsonl"]
    assert names(resolve(str(folder), "train")) == ["a.jsonl", "b.jsonl", "c.json"]
    assert names(resolve(str(folder / "*.jsonl"), "train")) == ["a.jsonl", "b.jsonl"]
    assert names(resolve("~/a.jsonl", "train")) == ["a.jsonl"]


def test_a_list_may_be_any_sequence_not_only_a_list(folder):
    assert names(resolve((str(folder / "a.jsonl"),), "train")) == ["a.jsonl"]


def test_a_folder_with_both_splits_gives_each_its_own_files(tmp_path):
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text("")
    assert names(resolve(str(tmp_path), "train")) == ["train.jsonl"]
    assert names(resolve(str(tmp_path), "val")) == ["test.jsonl"]


@pytest.mark.parametrize("entry", ["nothing.parquet", "*.parquet", "notes.txt"])
def test_what_names_no_data_file_is_refused(folder, entry):
    with pytest.raises(UserError, match=entry.strip("*")):
        resolve(str(folder / entry), "train")


def test_every_format_reads_the_same_records(tmp_path):
    records = [{"q": "Grüße, 世界 − 🙂", "n": 1}, {"q": "b", "n": 2}]
    lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records)
    (tmp_path / "x.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "bom.jsonl").write_text(lines, encoding="utf-8-sig")
    (tmp_path / "x.json").write_text(json.dumps(records), encoding="utf-8")
    with gzip.open(tmp_path / "x.jsonl.gz", "wt", encoding="utf-8") as f:
        f.write(lines)
    with gzip.open(tmp_path / "x.json.gz", "wt", encoding="utf-8") as f:
        f.write(json.dumps(records))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "x.parquet")
    for name in ("x.jsonl", "bom.jsonl", "x.json", "x.jsonl.gz", "x.json.gz", "x.parquet"):
        assert list(read_records(tmp_path / name)) == [(1, records[0]), (2, records[1])], name


def test_text_is_utf8_whatever_the_locale_says(tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"q": "−5 世界 🙂"}, ensure_ascii=False), encoding="utf-8")
    code = (
        "import sys, pathlib; from verl_core.data.files import read_records;"
        "print(ascii(list(read_records(pathlib.Path(sys.argv[1])))[0][1]['q']))"
    )
    env = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.jsonl")], env=env, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == ascii("−5 世界 🙂")


def test_a_line_that_is_not_json_keeps_its_number_and_the_others_are_read(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text('{"a": 1}\n\n{"a": \n{"a": 2}\n')
    numbers = [(number, type(record)) for number, record in read_records(file)]
    assert numbers == [(1, dict), (3, ValueError), (4, dict)]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("1" * 5000, "a number of thousands of digits"),
        (r'"\ud83d"', r"half a surrogate pair, \ud83d"),
        (r'"\uD83D\ude42"', None),
    ],
)
def test_json_that_python_or_a_tokenizer_does_not_take_is_a_broken_row(tmp_path, value, said):
    (tmp_path / "x.jsonl").write_text(f'{{"a": 1}}\n{{"a": {value}}}\n')
    (tmp_path / "x.json").write_text(f'[{{"a": {value}}}]')
    (_, first), (number, second) = read_records(tmp_path / "x.jsonl")
    assert (first, number) == ({"a": 1}, 2)
    if said is None:
        assert second == {"a": "\U0001f642"}
        return
    assert isinstance(second, ValueError) and said in str(second)
    with pytest.raises(UserError, match=rf"x\.json: {re.escape(said)}"):
        list(read_records(tmp_path / "x.json"))


def test_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"x\.parquet names a column twice: a, a"):
        list(read_records(tmp_path / "x.parquet"))


def test_a_folder_with_one_split_names_the_files_of_the_other(tmp_path):
    (tmp_path / "test.jsonl").write_text("")
    with pytest.raises(UserError, match="no train file in folder") as refused:
        resolve(str(tmp_path), "train")
    assert "test.jsonl" in refused.value.hint


SPOILT = gzip.compress(b"1234567890" * 50, mtime=0)[:10] + b"\xff" * 40  # a header, and no stream that zlib could read


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.parquet", b"not parquet"),
        ("x.json", b'{"a": 1}'),
        ("x.json", b"["),
        ("x.jsonl.gz", b"no gzip"),
        ("x.jsonl.gz", SPOILT),
        ("x.jsonl", b"\xff"),
    ],
)
def test_a_file_broken_as_a_whole_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=name):
        list(read_records(tmp_path / name))
