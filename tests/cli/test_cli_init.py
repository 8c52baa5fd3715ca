"""`rlx init`: every profile gives a project that resolves, whose reward test passes and whose scripts parse."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from rlx.commands import COMMANDS
from rlx.project import render
from verl_core.config import yaml_text
from verl_core.config.compose import profile_names, resolve
from verl_core.config.effective import effective, uses_rollout
from verl_core.config.unbuilt import unbuilt


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


def test_a_profile_that_waits_for_its_engine_alone_starts_today(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rlx.yaml").write_text(render("demo", "gsm8k-grpo")["rlx.yaml"])
    assert [*unbuilt(effective(resolve(None).config))] == []


@pytest.mark.parametrize("profile", ["smoke", "gsm8k-grpo", "grpo-70b-multinode", "sft-gsm8k"])
def test_commented_keys_are_keys(profile, tmp_path, monkeypatch):
    """What the file offers to uncomment must work when uncommented."""
    monkeypatch.chdir(tmp_path)
    files = render("demo", profile)
    Path("algorithm.py").write_text(files.get("algorithm.py", ""))
    lines = files["rlx.yaml"].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("extends:"))
    uncommented = [line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line for line in lines[start:]]
    Path("rlx.yaml").write_text("\n".join(uncommented))
    config = resolve(None).config
    assert config.actor.ppo_mini_batch_size == resolve(profile).config.actor.ppo_mini_batch_size
    assert config.trainer.experiment_name == "first-try"
    assert config.launch.slurm.partition == "gpu" and config.launch.env == {"NCCL_DEBUG": "WARN"}


@pytest.mark.parametrize("run", [["test_reward.py"], ["-m", "pytest", "-q", "-p", "no:cacheprovider"]])
def test_reward_test_passes_and_can_fail(project, run):
    def code() -> int:
        return subprocess.run([sys.executable, "-B", *run], cwd=project, check=False, capture_output=True).returncode

    assert code() == 0
    reward = project / "reward.py"
    reward.write_text(reward.read_text().replace("found[-1]", "found[0]"))
    assert code() != 0


@pytest.mark.parametrize("profile", ["smoke", "grpo-70b-multinode", "sft-gsm8k"])
def test_editors_find_the_schema_and_the_file_fits_it(profile):
    files = render("demo", profile)
    assert files["rlx.yaml"].startswith("# yaml-language-server: $schema=./rlx.schema.json\n")
    schema = json.loads(files["rlx.schema.json"])
    jsonschema.validate(yaml_text.read(files["rlx.yaml"]), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"extends": profile, "trainer": {"seeed": 1}}, schema)


def test_readme_names_files_and_commands_that_exist(project):
    text = (project / "README.md").read_text()
    named = set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE))
    written = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    assert named == written - {"README.md", ".gitignore"}
    commands = re.findall(r"^rlx (\w+)|`rlx (\w+)", text, re.MULTILINE)
    assert {one or other for one, other in commands} == {"train", "runs", "merge"} <= set(COMMANDS)
    (alias,) = re.findall(r"^alias rlx='(.*)'$", text, re.MULTILINE)
    assert (Path(shlex.split(alias)[3]) / "cli" / "rlx").is_dir()


def test_a_profile_without_answers_to_score_has_no_reward():
    assert not uses_rollout(effective(resolve("sft-gsm8k").config))
    files = render("demo", "sft-gsm8k")
    assert "reward.py" not in files
    assert not any("reward" in text for name, text in files.items() if name != "rlx.schema.json")


def test_several_machines_get_no_container_script():
    assert "launch/docker.sh" in render("demo", "grpo-7b-8gpu")
    files = render("demo", "grpo-70b-multinode")
    assert "launch/docker.sh" not in files and "`launch/docker.sh`" not in files["README.md"]
    assert (
        "#SBATCH --nodes=8\n" in files["launch/slurm.sh"] and "#SBATCH --gpus-per-node=8\n" in files["launch/slurm.sh"]
    )


def test_scripts_are_programs_and_names_are_those_kubernetes_takes(project):
    scripts = sorted((project / "launch").glob("*.sh"))
    assert [path.name for path in scripts] == ["docker.sh", "ray-node.sh", "ray.sh", "slurm.sh"]
    assert all(script.stat().st_mode & 0o100 for script in scripts)
    assert not any("@@" in path.read_text() for path in project.rglob("*") if path.is_file())
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
    assert (
        "My_Project has .gitignore, rlx.yaml" in done.stderr
        and "hint: name another: `rlx init My_Project-2`" in done.stderr
    )
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
        (["x" * 300], "DIR xxxx"),
        (["x" * 300, "--dry-run"], "too long for a path"),
        (["own.yaml/new"], "cannot be written: Not a directory"),
    ],
)
def test_what_cannot_become_a_project_is_one_line(rlx, tmp_path, words, said):
    (tmp_path / "own.yaml").write_text("extends: smoke\n")
    done = rlx("init", *words)
    assert done.returncode == 1 and said in done.stderr and "hint:" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]
