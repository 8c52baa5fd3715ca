"""prepare, eval and merge: what they refuse before an environment is made, and the line they would launch."""

import json
import re
from pathlib import Path

import pytest

from rlx import jobs
from rlx.commands.eval import _resolve
from rlx.env import lockfile
from rlx.eval_sources import run_of
from verl_core.config import write
from verl_core.config.compose import resolve


@pytest.fixture
def no_environment(tmp_path) -> dict[str, str | None]:
    return {"RLX_ENVS": str(tmp_path / "envs"), "RLX_PYTHON": None}


@pytest.fixture
def checkpointed_run(tmp_path) -> Path:
    run = tmp_path / "run"
    (run / "checkpoints" / "global_step_1").mkdir(parents=True)
    (run / "checkpoints" / "global_step_1" / "manifest.json").write_text("{}")
    (run / "run.json").write_text("{}")
    (run / "config.yaml").write_text(write.dump(resolve("smoke").config))
    return run


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["prepare", "gsm9k"], "gsm9k"),
        (["prepare", "gsm8k", "--source", "nowhere"], "--source nowhere"),
        (["merge", "nowhere", "--out", "new"], "SOURCE nowhere"),
        (["merge", ".", "--out", "new"], "holds no checkpoint"),
        (["merge", "run", "--out", "full"], "--out full"),
        (["merge", "run", "--out", "new", "--shard-size", "big"], "--shard-size big is no size"),
        (["merge", "run", "--out", "new", "--shard-size", "0MB"], "--shard-size 0MB is no size"),
        (["merge", "run", "--out", "new", "--reverse", "--dtype", "bf16"], "--reverse copies a model as it is"),
        (["merge", "run", "--out", "full", "--push", "a/b"], "rlx merge full --push a/b"),
        (["merge", "run", "--out", "s3://bucket/new"], "--out s3://bucket/new: it is written to a disk"),
        (["merge", "s3://bucket/model", "--push", "a/b"], "s3://bucket/model: --push without --out"),
        (["merge", "run", "--out", "new", "--revision", "v1"], "there is no --push"),
        (["merge", "run", "--out", "new", "--push", ""], "--push is empty"),
        (["eval", "./nowhere", "smoke"], "./nowhere"),
        (["eval", "a/b/c", "smoke"], "a/b/c"),
        (["eval", "full"], "needs a profile"),
        (["eval", "run", "--data", "none.parquet"], "--data none.parquet"),
    ],
)
def test_refused_before_an_environment_is_made(rlx, no_environment, checkpointed_run, tmp_path, words, named):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = rlx(*words, env=no_environment)
    assert done.returncode == 1, done.stderr
    assert named in done.stderr and "hint:" in done.stderr
    assert not (tmp_path / "envs").exists()


def test_dry_runs_say_the_launch_line_without_an_environment(rlx, no_environment, checkpointed_run, tmp_path):
    folder = tmp_path / "envs" / f"fsdp-{lockfile.environment_key()}"
    (tmp_path / "model").mkdir()  # the job tells that no model is in it
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "fsdp_config.json").touch()
    for words, job in (
        (["prepare", "gsm8k", "--limit", "3"], "verl_core.data.prepare.job gsm8k --limit 3"),
        (
            ["merge", "run", "--out", "new", "--dtype", "bf16"],
            "verl_core.checkpoint.merge_job run --out new --dtype bf16",
        ),
        (
            [
                "merge",
                "verl",
                "--out",
                "new",
                "--lora-alpha",
                "8",
                "--base",
                "a/b",
                "--shard-size",
                "1.5GiB",
                "--dry-run",
            ],
            "verl_core.checkpoint.merge_job verl --out new --base a/b --lora_alpha 8.0 --max_file_bytes 1610612736",
        ),
        (
            ["merge", "model", "--out", "new", "--reverse", "--role", "critic"],
            "verl_core.checkpoint.reverse_job model --out new --role critic",
        ),
        (
            ["merge", "hdfs://host/model", "--out", "new", "--reverse"],
            "verl_core.checkpoint.reverse_job hdfs://host/model --out new",
        ),
        (
            ["merge", "run", "--out", "new", "--push", "a/b", "--revision", "v1", "--private"],
            "verl_core.checkpoint.merge_job run --out new --push a/b --revision v1 --private",
        ),
        (["merge", "model", "--push", "a/b", "--public"], "verl_core.checkpoint.push_job model --push a/b --public"),
    ):
        done = rlx(*words, "--dry-run", env=no_environment)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{folder}/bin/python -P -m {job}")
        assert "is not there yet" in done.stderr
    assert not (tmp_path / "envs").exists() and not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", [["merge", "run"], ["merge", "run", "--push", "a/b", "--dtype", "bf16"]])
def test_a_merge_needs_a_folder_to_write(rlx, no_environment, checkpointed_run, words):
    done = rlx(*words, env=no_environment)
    assert done.returncode == 2 and "--out" in done.stderr


@pytest.mark.parametrize("words", [["prepare", "gsm8k"], ["merge", "run", "--out", "new"]])
def test_a_dry_run_without_an_environment_prints_only_json_under_json(rlx, no_environment, checkpointed_run, words):
    done = rlx(*words, "--dry-run", "--json", env=no_environment)
    said = json.loads(done.stdout)
    assert said["dry_run"] and "-m verl_core" in said["launch"] and "--json" in said["launch"]
    assert "is not there yet" in said["absent"][0]


def test_merge_takes_every_folder_that_may_hold_a_checkpoint(rlx, no_environment, checkpointed_run):
    """Which one it is, and whether it is whole, is the job's to say."""
    (checkpointed_run / "checkpoints" / "global_step_2").mkdir()  # its save did not finish
    for source in ("run", "run/checkpoints", "run/checkpoints/global_step_1", "run/checkpoints/global_step_2"):
        done = rlx("merge", source, "--out", "new", "--dry-run", env=no_environment)
        assert (done.returncode, f"merge_job {source} " in done.stdout) == (0, True), done.stderr


def test_options_become_words():
    assert jobs.options(out=Path("x"), limit=None, json=True, dry=False) == ["--out", "x", "--json"]


def test_a_checkpoint_inside_a_run_finds_the_run(checkpointed_run):
    inside = checkpointed_run / "checkpoints" / "global_step_1"
    assert run_of(str(inside)) == checkpointed_run
    link = checkpointed_run.parent / "best"
    link.symlink_to(inside)
    assert run_of(str(link)) == checkpointed_run
    assert run_of(str(checkpointed_run.parent)) is None


def test_a_run_is_evaluated_as_it_was_configured_and_a_model_with_the_hf_engine(
    checkpointed_run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    of_run = _resolve(str(checkpointed_run), checkpointed_run, ["trainer.seed=4"])
    assert of_run.config == resolve("smoke", ["trainer.seed=4"]).config
    assert of_run.warnings == []
    assert _resolve("some-model", None, ["gsm8k-grpo"]).config.rollout.engine == "hf"
    assert _resolve("some-model", None, ["gsm8k-grpo", "rollout.engine=vllm"]).config.rollout.engine == "vllm"


@pytest.mark.parametrize(
    ("out", "said"), [("folder", "Is a directory"), ("file/answers", "Not a directory|File exists")]
)
def test_answers_that_could_not_be_kept_are_not_made(rlx, tmp_path, out, said):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    done = rlx("eval", "folder", "smoke", "--out", out)
    assert done.returncode == 1
    assert re.search(f"error: --out {out} cannot be written: ({said})\n", done.stderr), done.stderr


def test_profile_show_gives_a_file_that_train_takes(rlx, tmp_path):
    (tmp_path / "all.yaml").write_text(rlx("profile", "show", "smoke", "trainer.seed=5").stdout)
    done = rlx("train", "-f", "all.yaml", "--dry-run", "--json")
    assert json.loads(done.stdout)["model"] == "builtin:show-your-work"
    assert resolve(None, file=tmp_path / "all.yaml").config == resolve("smoke", ["trainer.seed=5"]).config


def test_profile_ls_lists_every_profile_with_its_purpose(rlx):
    rows = json.loads(rlx("profile", "ls", "--json").stdout)
    assert {"smoke", "smoke-ppo", "gsm8k-ppo", "gsm8k-grpo"} <= {row["profile"] for row in rows}
    assert all(row["purpose"] for row in rows)
