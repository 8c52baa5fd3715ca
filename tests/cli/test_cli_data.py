"""What `rlx data` makes of its words before it becomes the job."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlx import jobs
from rlx.commands.data import app
from verl_core.config import write
from verl_core.config.errors import UserError


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the command in a folder with a file and a prepared data set; gives the job's words, its configuration in
    place of the path, and the extras."""
    (tmp_path / "rows.jsonl").write_text("{}\n")
    prepared = tmp_path / "HOME" / "data" / "gsm8k"
    prepared.mkdir(parents=True)
    (prepared / "manifest.json").write_text(json.dumps({"dataset": "gsm8k", "files": {}, "needs": ["reasoning-gym"]}))
    for name in ("HOME", "RLX_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)

    def run(*words: str):
        given: list = []
        monkeypatch.setattr(jobs, "become", lambda job, args, extras, **_: given.extend([list(args), list(extras)]))
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if result.exit_code:
            return result.exit_code, result.output
        (args, extras) = given
        at = args.index("--config")
        config = write.load(Path(args[at + 1]))
        return args[:at] + args[at + 2 :], config, extras

    return run


def test_without_a_model_no_tokenizer_is_loaded_and_the_columns_say_what_rows_are(job):
    args, config, extras = job("stats", "rows.jsonl", "--against", "builtin:show-your-work", "data.prompt_key=q")
    assert args == [
        *("stats", "--split", "train", "--against", "builtin:show-your-work"),
        *("--no-tokenizer", "--by-columns", "rows.jsonl"),
    ]
    assert config.data.prompt_key == "q" and extras == ["fsdp"]


def test_a_model_gives_the_tokenizer_and_a_profile_all(job):
    args, config, _ = job("show", "rows.jsonl", "--model", "some/model", "--row", "4", "--json")
    assert args == ["show", "--row", "4", "--split", "train", "--json", "-n", "3", "--by-columns", "rows.jsonl"]
    assert config.model.path == "some/model"
    args, config, _ = job("show", "rows.jsonl", "smoke", "data.max_prompt_length=40", "--split", "val")
    assert args == ["show", "--split", "val", "-n", "3", "rows.jsonl"]
    assert (config.data.max_prompt_length, config.model.path) == (40, "builtin:show-your-work")


def test_check_tells_files_from_profiles_and_brings_along_what_scoring_needs(job, tmp_path):
    args, config, extras = job("check", "gsm8k", "smoke", "--val", "rows.jsonl", "data.truncation=left")
    prepared = str(tmp_path / "HOME" / "data" / "gsm8k")
    assert args == ["check", "--val", "rows.jsonl", prepared]
    assert config.data.truncation == "left" and extras == ["fsdp", "reasoning-gym"]
    assert job("check", "smoke")[0] == ["check"]
    args, _, extras = job("check", "--val", "gsm8k")
    assert args == ["check", "--val", prepared, "--no-tokenizer", "--by-columns"]
    assert extras == ["fsdp", "reasoning-gym"]
    code, said = job("check")
    assert code == 2 and "name files, or a profile" in said


def test_what_is_not_there_is_refused_before_an_environment_is_made(job):
    with pytest.raises(UserError, match=r"FILE absent.parquet does not exist"):
        job("show", "absent.parquet")
    with pytest.raises(UserError, match="FILE math: it is not prepared"):
        job("stats", "math")
    with pytest.raises(UserError, match=r"--val none.jsonl does not exist"):
        job("check", "rows.jsonl", "--val", "none.jsonl")
    with pytest.raises(UserError, match=r"data.promt_key='q' .*did you mean data.prompt_key"):
        job("stats", "rows.jsonl", "data.promt_key=q")
    with pytest.raises(UserError, match=r"data.max_prompt_length=0"):
        job("stats", "rows.jsonl", "data.max_prompt_length=0")
    assert job("show", "rows.jsonl", "--split", "test")[0] == 2


@pytest.mark.slow
def test_the_real_command_ends_with_1_where_something_is_wrong(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"data_source": "openai/gsm8k", "prompt": "Q?", "reward_model": {"ground_truth": "x"}}\n{\n')
    done = subprocess.run(
        [sys.executable, "-m", "rlx", "data", "check", file, "smoke", "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"RLX_PYTHON": sys.executable},
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["counts"] == {"broken": 1, "gold": 1}
