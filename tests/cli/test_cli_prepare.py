"""`rlx prepare`: the table, and a plan that needs no environment, network or data."""

import json
import os

import pytest
from typer.testing import CliRunner

from rlx import jobs
from rlx.commands.prepare import app


def test_the_table_has_rows_licence_and_scorer_of_every_data_set(rlx):
    rows = {row["name"]: row for row in json.loads(rlx("prepare", "gsm8k", "--list", "--json").stdout)}
    assert rows["gsm8k"]["rows"] == {"train": 7473, "test": 1319}
    assert (rows["gsm8k"]["licence"], rows["gsm8k"]["scorer"]) == ("MIT", "gsm8k")
    assert rows["aime-2024"]["rows"].keys() == {"test"}
    assert rows["hh-rlhf"]["options"] == {"--form": "one of pairs, sft, rl (pairs)"}
    assert "reasoning-gym:TASK" in rows


def test_the_table_is_text_for_people(rlx):
    lines = rlx("prepare").stdout.splitlines()
    assert lines[0].split() == ["NAME", "ROWS", "LICENCE", "SCORER"]
    assert any(line.split()[:1] == ["ultrafeedback"] and line.endswith("none") for line in lines)


def test_a_plan_names_files_and_the_launch_and_touches_nothing(rlx, tmp_path):
    nothing = {
        "RLX_ENVS": str(tmp_path / "envs"),
        "RLX_PYTHON": None,
        "HOME": str(tmp_path),
        "HF_ENDPOINT": "http://[::1]",
    }
    done = rlx("prepare", "hh-rlhf", "--form", "rl", "--limit", "5", "--dry-run", "--json", env=nothing)
    plan = json.loads(done.stdout)
    assert (plan["origin"], plan["out"]) == ("hub:Dahoas/full-hh-rlhf", str(tmp_path / "data" / "hh-rlhf" / "rl"))
    assert plan["files"]["train"] == {"file": "train.parquet", "rows": 5}
    assert plan["launch"].endswith("-m verl_core.data.prepare.job hh-rlhf --limit 5 --json --form rl")
    done = rlx("prepare", "aime-2024", "--dry-run", env=nothing)
    assert done.stdout.splitlines()[:2] == [
        "aime-2024 from hub:BytedTsinghua-SIA/AIME-2024",
        f"test: up to 30 rows  {tmp_path}/data/aime-2024/test.parquet",
    ]
    assert not (tmp_path / "envs").exists() and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hh-rlhf", "--form", "dpo"], "--form 'dpo': expected one of pairs, sft, rl"),
        (["--form", "rl", "hh-rlhf"], "no dataset named '--form'"),
    ],
)
def test_options_of_other_data_sets_are_refused_before_an_environment_is_made(rlx, tmp_path, words, said):
    done = rlx("prepare", *words, env={"RLX_ENVS": str(tmp_path / "envs"), "RLX_PYTHON": None})
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "envs").exists()


@pytest.mark.parametrize("seed", [None, "7"])
def test_what_is_made_hangs_on_no_order_of_sets(monkeypatch, seed):
    """Some generators of reasoning-gym go through sets of texts; a seed of the user's stays."""
    monkeypatch.setenv("PYTHONHASHSEED", seed or "")
    if seed is None:
        monkeypatch.delenv("PYTHONHASHSEED")
    monkeypatch.setattr(jobs, "become", lambda *_: None)
    CliRunner().invoke(app, ["reasoning-gym:ransom_note"])
    assert os.environ["PYTHONHASHSEED"] == (seed or "0")
