"""Extras that a run needs because of the data that it reads."""

import json

from verl_core.config.compose import resolve
from verl_core.config.effective import extras


def prepared(folder, **manifest):
    folder.mkdir()
    (folder / "train.parquet").touch()
    (folder / "manifest.json").write_text(json.dumps({"dataset": "x", "files": {}} | manifest), encoding="utf-8")
    return folder


def wanted(*words):
    return set(extras(resolve("smoke", list(words)).config))


def test_what_prepared_files_need_is_in_the_environment(tmp_path):
    made = prepared(tmp_path / "made", needs=["reasoning-gym"])
    for files in (made, made / "train.parquet", f"{tmp_path}/m*/train.parquet", f"[{made}/train.parquet]"):
        assert wanted(f"data.train_files={files}") - wanted() == {"reasoning-gym"}
        assert wanted(f"data.val_files={files}") - wanted() == {"reasoning-gym"}
    assert wanted(f"data.mixture.a.files={made}", "data.mixture.a.weight=1") - wanted() == {"reasoning-gym"}


def test_nothing_is_needed_by_files_of_others(tmp_path):
    assert wanted(f"data.train_files={tmp_path}/absent/train.parquet") == wanted()
    for number, text in enumerate(('{"needs": ["x"]}', "[]", "{", '{"dataset": "x", "files": {}, "needs": 3}')):
        folder = prepared(tmp_path / str(number))
        (folder / "manifest.json").write_text(text, encoding="utf-8")
        assert wanted(f"data.train_files={folder}") == wanted()


def test_answers_that_are_learned_from_are_not_scored(tmp_path):
    made = prepared(tmp_path / "made", needs=["reasoning-gym"])
    config = resolve("smoke", ["algorithm.name=sft", f"data.train_files={made}"]).config
    assert "reasoning-gym" not in extras(config)
