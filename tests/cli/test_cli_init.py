"""`rlx init`: every profile gives a project that resolves, whose reward test passes and whose scripts parse."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlx.commands.init import render
from verl_core.config.compose import profile_names, resolve


@pytest.fixture
def project(rlx, tmp_path) -> Path:
    assert rlx("init", "My_Project", "--profile", "gsm8k-grpo").returncode == 0
    return tmp_path / "My_Project"


@pytest.mark.parametrize("profile", profile_names())
def test_rendered_configuration_resolves_and_extends_its_profile(profile, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rlx.yaml").write_text(render("demo", profile)["rlx.yaml"])
    resolved = resolve(None, strict=True)
    assert resolved.profile == profile
    assert resolved.config.trainer.project_name == "demo"
    assert resolved.config.rollout.n == resolve(profile).config.rollout.n
    assert resolved.config.rollout.engine == "hf"  # the project starts today, whatever engine the profile waits for


def test_commented_keys_are_keys(tmp_path, monkeypatch):
    """What the file offers to uncomment must work when uncommented."""
    monkeypatch.chdir(tmp_path)
    lines = render("demo", "smoke")["rlx.yaml"].splitlines()
    prose = lines[:2]
    uncommented = [line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line for line in lines[2:]]
    Path("rlx.yaml").write_text("\n".join(prose + uncommented))
    config = resolve(None).config
    assert config.actor.ppo_mini_batch_size == resolve("smoke").config.actor.ppo_mini_batch_size
    assert config.trainer.experiment_name == "first-try"


def test_reward_test_passes_and_can_fail(project):
    run = [sys.executable, "test_reward.py"]
    assert subprocess.run(run, cwd=project, check=False, capture_output=True).returncode == 0
    reward = project / "reward.py"
    reward.write_text(reward.read_text().replace("found[-1]", "found[0]"))
    assert subprocess.run(run, cwd=project, check=False, capture_output=True).returncode != 0


def test_scripts_and_manifests_parse(project):
    scripts = sorted((project / "launch").glob("*.sh"))
    assert [path.name for path in scripts] == ["docker.sh", "ray.sh", "slurm.sh"]
    for script in scripts:
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
        assert script.stat().st_mode & 0o100
        assert "@@" not in script.read_text()
    manifest = yaml.safe_load((project / "launch" / "kuberay.yaml").read_text())
    assert manifest["metadata"]["name"] == "my-project"  # Kubernetes takes neither capitals nor underscores


def test_project_dry_runs_from_its_folder(rlx, project):
    done = rlx("train", "--dry-run", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "runs/My_Project/gsm8k-grpo-1" in done.stdout


def test_nothing_is_overwritten(rlx, project):
    before = (project / "reward.py").read_text()
    done = rlx("init", "My_Project")
    assert done.returncode == 1
    assert "reward.py" in done.stderr and "hint:" in done.stderr
    assert (project / "reward.py").read_text() == before


def test_dry_run_lists_files_and_writes_none(rlx, tmp_path):
    done = rlx("init", "new", "--dry-run")
    assert done.returncode == 0
    assert "new/rlx.yaml" in done.stdout.splitlines()
    assert not (tmp_path / "new").exists()


def test_unknown_profile_writes_nothing(rlx, tmp_path):
    done = rlx("init", "new", "--profile", "smok")
    assert done.returncode == 1
    assert "smoke" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["new", "--profile", "./own.yaml"], "--profile ./own.yaml is a file"),
        (["x" * 300], "cannot be written: File name too long"),
        (["own.yaml/new"], "own.yaml/new/README.md cannot be written: Not a directory"),
    ],
)
def test_what_cannot_become_a_project_is_one_line(rlx, tmp_path, words, said):
    (tmp_path / "own.yaml").write_text("extends: smoke\n")
    done = rlx("init", *words)
    assert done.returncode == 1 and said in done.stderr and "hint:" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]
