"""`rlx train` up to the moment it becomes the job: plans, errors, run directories."""

import json
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlx import dry_run, rundir
from verl_core.config import write
from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError


def all_paths(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(*overrides: str, resume: bool = False) -> Path:
    return rundir.start(resolve("smoke", overrides), resume, environment="somewhere")


def test_data_that_prepare_does_not_know_is_only_said_to_be_absent(rlx, tmp_path):
    own = "data.train_files=~/data/mine/train.parquet"
    said = rlx("train", "math-grpo", own, "--dry-run", env={"HOME": str(tmp_path)}).stderr
    assert "data.train_files: ~/data/mine/train.parquet is not there\n" in said


@pytest.mark.parametrize("key", ["model.path", "distillation.teacher_models.qwen-7b.model_path"])
def test_a_model_folder_that_is_not_there_is_no_name_on_the_hub(key, tmp_path):
    def said(path: str) -> list[str]:
        config = effective(resolve("opd-qwen", [f"{key}={path}"]).config)
        return [line for line in dry_run._absent(config) if line.startswith(f"{key}: ")]

    assert said("org/name") == [f"{key}: org/name is no folder here; the run will fetch it from the Hugging Face hub"]
    assert said(str(tmp_path)) == []
    for path in (str(tmp_path / "nobody"), "./nobody", "../nobody", "~/nobody-at-all"):
        assert said(path) == [f"{key}: {path} is not there"]


def test_a_verdict_without_a_gpu_says_that_there_is_none(rlx, tmp_path):
    done = rlx("train", "gsm8k-grpo", "rollout.engine=hf", "--dry-run", env={"PATH": str(tmp_path)})  # no nvidia-smi
    assert "fits on H200 (no NVIDIA GPU here): " in done.stdout


def test_dry_run_shows_the_plan_and_writes_nothing(rlx, tmp_path):
    home = tmp_path / "home"
    done = rlx("train", "gsm8k-grpo", "--dry-run", env={"RLX_PYTHON": None, "HOME": str(home), "RLX_CACHE": None})
    assert done.returncode == 0, done.stderr
    for expected in (
        "256 prompts x 5 answers = 1280 sequences",
        "ref on main",
        "runs/gsm8k/gsm8k-grpo-1",
        "-m verl_core",
    ):
        assert expected in done.stdout
    for absent in ("model.path", "data.val_files"):
        assert absent in done.stderr
    assert "data.train_files: ~/data/gsm8k/train.parquet is not there; `rlx prepare gsm8k` makes it" in done.stderr
    assert all_paths(tmp_path) == []


@pytest.mark.parametrize("how", [["--dry-run"], ["--launcher", "slurm", "--dry-run"], ["--launcher", "slurm"], []])
def test_sizes_that_do_not_divide_are_refused_however_a_run_is_started(rlx, how):
    done = rlx("train", "gsm8k-grpo", "cluster.n_gpus_per_node=4", "actor.ulysses_sequence_parallel_size=4", *how)
    assert (done.returncode, done.stdout) == (1, "") and "run directory" not in done.stderr
    assert "actor.ulysses_sequence_parallel_size=4 does not divide the model's 14 attention heads" in done.stderr


def test_dry_run_json_is_the_only_thing_on_stdout(rlx):
    plan = json.loads(rlx("train", "smoke", "rollout.n=4", "--dry-run", "--json").stdout)
    assert plan["batch"]["sequences"] == plan["batch"]["prompts"] * 4
    assert plan["roles"] == {"actor": "main", "rollout": "main"}
    assert plan["environment"]["extras"] == ["fsdp"]


def test_misspelt_key_is_one_line_and_writes_nothing(rlx, tmp_path):
    done = rlx("train", "smoke", "actor.optim.lrr=1")
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error.startswith("error:") and "actor.optim.lrr" in error and "actor.optim.lr" in error.split("lrr")[-1]
    assert hint.startswith("hint:")
    assert all_paths(tmp_path) == []


def test_error_under_json_is_an_object_with_the_exit_code(rlx):
    done = rlx("train", "smoke", "actor.optim.lrr=1", "--json")
    assert json.loads(done.stdout)["exit_code"] == done.returncode == 1


def test_strict_refuses_what_otherwise_warns(rlx):
    words = ["train", "smoke", "algorithm.kl_ctrl.kl_coef=0.5", "--dry-run"]
    assert "use_kl_in_reward" in rlx(*words).stderr
    assert rlx(*words, "--strict").returncode == 1


def test_a_back_end_of_a_later_release_is_refused_before_anything_is_made(rlx, tmp_path):
    done = rlx("train", "smoke", "actor.strategy=megatron")
    assert done.returncode == 1
    assert "strategy=megatron comes with a later release" in done.stderr
    assert "actor.strategy=fsdp runs today" in done.stderr
    assert all_paths(tmp_path) == []


def test_unset_names_count_up_and_fill_gaps(here):
    assert [started().name for _ in range(3)] == ["smoke-1", "smoke-2", "smoke-3"]
    subprocess.run(["rm", "-r", here / "runs/smoke/smoke-2"], check=True)
    assert started().name == "smoke-2"


def test_two_commands_at_once_get_two_directories(here):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: started(), range(16)))
    assert sorted(int(f.name.split("-")[1]) for f in folders) == list(range(1, 17))


def test_records_say_what_was_run(here):
    folder = started("trainer.seed=3")
    config = write.load(folder / "config.yaml")
    assert (config.trainer.seed, config.trainer.experiment_name) == (3, "smoke-1")
    run = json.loads((folder / "run.json").read_text())
    assert run["profile"] == "smoke" and len(run["lock"]) == 64 and run["git"] is None
    origins = json.loads((folder / "origins.json").read_text())
    assert origins["trainer.seed"] == "command line"


def test_run_records_the_commit_of_its_folder(here):
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    clean = rundir.git_state()
    assert clean is not None and len(clean["sha"]) == 40 and not clean["dirty"]
    (here / "new.py").touch()
    assert rundir.git_state() == {"sha": clean["sha"], "dirty": True}


def test_a_set_name_that_exists_needs_resume(rlx, here):
    started("trainer.experiment_name=mine")
    done = rlx("train", "smoke", "trainer.experiment_name=mine")
    assert done.returncode == 1
    assert "runs/smoke/mine exists already" in done.stderr and "--resume" in done.stderr
    assert started("trainer.experiment_name=mine", resume=True).name == "mine"


def test_resume_takes_the_newest_run_and_keeps_its_history(here):
    for n in (1, 2, 3):
        record = started() / "run.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"started": f"2026-01-0{[0, 2, 3, 1][n]}"}))
    folder = started("trainer.total_training_steps=99", resume=True)
    assert folder.name == "smoke-2"  # newest by start, not by number
    run = json.loads((folder / "run.json").read_text())
    assert run["started"] == "2026-01-03" and len(run["resumes"]) == 1
    assert write.load(folder / "config.yaml").trainer.total_training_steps == 99


def test_resume_says_what_it_changes(here):
    folder = started("trainer.seed=3")
    same, other = resolve("smoke", ["trainer.seed=3"]), resolve("smoke", ["trainer.seed=3", "actor.optim.lr=0.5"])
    assert rundir.changes(folder, same) == []
    assert rundir.changes(folder, other) == [f"actor.optim.lr: {same.config.actor.optim.lr} -> 0.5"]
    assert rundir.changes(here / "new", other) == []


def test_a_run_at_work_is_not_resumed_beside_it(here):
    folder = started("trainer.experiment_name=mine")
    record = json.loads((folder / "run.json").read_text())
    asleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    at_work = subprocess.Popen([*asleep, "-m", "verl_core.controller.job", str(folder)])
    stranger = subprocess.Popen(asleep)  # has got the number of a run that was killed
    try:
        (folder / "run.json").write_text(json.dumps(record | {"pid": at_work.pid}))
        with pytest.raises(UserError, match=f"process {at_work.pid} is training runs/smoke/mine"):
            started("trainer.experiment_name=mine", resume=True)
        for other in ({"pid": stranger.pid}, {"pid": at_work.pid, "host": "another machine"}):
            (folder / "run.json").write_text(json.dumps(record | other))
            assert started("trainer.experiment_name=mine", resume=True) == folder
    finally:
        for process in (at_work, stranger):
            process.kill()
            process.wait()


def test_resume_with_nothing_to_resume_starts_fresh(here):
    assert started(resume=True).name == "smoke-1"


def test_unwritable_place_is_one_line(rlx, tmp_path):
    (tmp_path / "file").touch()
    done = rlx("train", "smoke", f"trainer.default_local_dir={tmp_path}/file/runs")
    assert done.returncode == 1
    assert f"error: {tmp_path}/file/runs/smoke cannot be written: Not a directory" in done.stderr
    assert all_paths(tmp_path) == [tmp_path / "file"]


def test_a_place_that_cannot_be_looked_at_is_one_line(rlx, tmp_path):
    long = "x/" * 2045 + "x"  # a path that could be, and with the project's name in it could not
    for words in (["--dry-run"], [], ["trainer.experiment_name=mine"]):
        done = rlx("train", "smoke", f"trainer.default_local_dir={long}", *words)
        assert done.returncode == 1, done.stderr
        assert f"{long}/smoke cannot be read: File name too long" in done.stderr
    assert all_paths(tmp_path) == []


def test_a_name_that_leads_elsewhere_is_refused(rlx, tmp_path):
    (tmp_path / "here").mkdir()
    done = rlx("train", "smoke", "trainer.experiment_name=../../../outside", cwd=tmp_path / "here")
    assert done.returncode == 1
    assert "trainer.experiment_name='../../../outside' (command line)" in done.stderr and "hint:" in done.stderr
    assert all_paths(tmp_path) == [tmp_path / "here"]


def test_patterns_of_data_files_are_looked_up_as_the_job_does(rlx, tmp_path):
    (tmp_path / "part-1.parquet").touch()
    words = ["train", "smoke", "data.train_files=part**.parquet", "data.val_files=[p*.jsonl]", "--dry-run", "--json"]
    absent = json.loads(rlx(*words).stdout)["absent"]
    assert [text.split(":")[0] for text in absent] == ["data.val_files"]


def test_a_write_that_fails_leaves_nothing(tmp_path):
    """The kernel refuses the write itself, as it does on a full disk."""
    script = (
        "from rlx import rundir; from verl_core.config.compose import resolve\n"
        "rundir.start(resolve('smoke'), False, 'somewhere')"
    )
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # noqa: E731
    run = [sys.executable, "-B", "-c", script]
    done = subprocess.run(run, cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert "UserError: runs/smoke cannot be written: File too large" in done.stderr
    assert all_paths(tmp_path) == []


def test_a_full_disk_is_refused_before_the_run(here, monkeypatch):
    monkeypatch.setattr(rundir, "LEAST_FREE_BYTES", 10**18)
    with pytest.raises(UserError, match="free, a run needs at least"):
        started()
    assert all_paths(here) == []
