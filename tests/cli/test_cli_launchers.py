"""`rlx train --launcher`: what is rendered is valid, says what the configuration says, and is handed over as it is."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from rlx.launchers import Launcher, lacks, render
from rlx.launchers.job import Job, Machines
from rlx.launchers.kuberay import LONGEST_NAME, dns_name, document
from rlx.project import render as render_project
from verl_core.config import yaml_text
from verl_core.config.compose import profile_names, resolve
from verl_core.config.errors import UserError
from verl_core.config.write import of_run

ODD = """a b'c"d$HOME"""
SITE = ["launch.kuberay.image=rlx:1", "launch.kuberay.claim=disk", "cluster.ray_address=head:6379"]


def job(profile: str = "smoke", *settings: str, folder: Path | None = Path("/a b/project"), **more) -> Job:
    resolved = resolve(profile, [*SITE, *settings])
    return Job(resolved.config, resolved.profile, (profile, *SITE, *settings), folder=folder, **more)


def shellcheck(script: str) -> str:
    """What shellcheck says at its strictest. SC2016: words that hold a `$` as text; SC2329: functions that a trap or
    another machine calls."""
    beside_python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which("shellcheck", path=beside_python)
    assert program, "the extra `test` brings shellcheck"
    command = [program, "--exclude=SC2016,SC2329", "-"]
    return subprocess.run(command, input=script, capture_output=True, text=True, check=False).stdout


def fake(folder: Path, name: str, does: str = "") -> Path:
    """A program that keeps its words and its stdin in NAME.words and NAME.stdin beside it."""
    path = folder / name
    path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > "$0.words"\ncat > "$0.stdin"\n{does}\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def programs(tmp_path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder


def first_on_path(programs: Path) -> dict[str, str]:
    return {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


# what is rendered


@pytest.mark.parametrize("profile", profile_names())
def test_every_script_of_every_profile_passes_shellcheck(profile):
    scripts = {name: text for name, text in render_project("a project", profile).items() if name.endswith(".sh")}
    one = job(profile, f"trainer.experiment_name={ODD}", "launch.slurm.setup=[module load cuda]", name=ODD)
    for launcher in (Launcher.slurm, Launcher.ray, Launcher.docker):
        if launcher is not Launcher.docker or one.machines.count == 1:
            scripts[launcher.value] = render(launcher, one)
    assert len(scripts) >= 5
    for name, script in scripts.items():
        assert shellcheck(script) == "", name
        assert "@@" not in script


@pytest.mark.parametrize("profile", profile_names())
def test_every_manifest_is_valid(profile):
    one = job(profile, "launch.kuberay.secret=keys", "launch.kuberay.node_selector={gpu: h200}", name="first")
    text = render(Launcher.kuberay, one)
    project = yaml.safe_load(render_project("demo", profile)["launch/kuberay.yaml"])
    config_map, submitted = yaml.safe_load_all(text)
    kubernetes_validate.validate(config_map, "1.31", strict=True)
    for ray_job in (project, submitted):
        assert (ray_job["apiVersion"], ray_job["kind"]) == ("ray.io/v1", "RayJob")
        assert ray_job["spec"]["entrypoint"].startswith("rlx train ")
        cluster = ray_job["spec"]["rayClusterSpec"]
        groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
        assert sum(group.get("replicas", 1) for group in groups) == one.machines.count
        for group in groups:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group["template"]}
            kubernetes_validate.validate(pod, "1.31", strict=True)
            limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
            assert limits.get("nvidia.com/gpu", 0) == one.machines.gpus
        for group in groups[1:]:
            assert {"groupName", "replicas", "minReplicas", "maxReplicas", "template"} <= set(group)


def test_manifest_carries_the_whole_configuration_and_the_reward(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my reward.py").write_text("def compute_score(*a, **k):\n    return 1.0\n")
    one = job("smoke", "reward.custom_reward_function.path=my reward.py", "trainer.seed=7", name="first")
    config_map, ray_job = yaml.safe_load_all(render(Launcher.kuberay, one))
    Path("config.yaml").write_text(config_map["data"]["config.yaml"])
    assert resolve(None, file=Path("config.yaml")).config == of_run(one.config)
    assert config_map["data"]["my_reward.py"] == Path("my reward.py").read_text()
    entrypoint = ray_job["spec"]["entrypoint"]
    for word in ("custom_reward_function.path=/project/my_reward.py", "--resume", "experiment_name=first"):
        assert word in entrypoint


def test_manifests_read_alike_by_the_rules_of_yaml_1_1_and_1_2():
    """Kubernetes reads YAML by another library than ours: variables must be text for all of them."""
    values = {"a": "off", "b": "1e-6", "c": "010", "d": "no", "e": "1_000", "f": "0x10", "g": "12:30:45", "h": "null"}
    text = document(values)
    assert yaml.safe_load(text) == yaml_text.read(text) == values
    assert all('"' in line for line in text.splitlines())


def test_names_of_kubernetes():
    assert dns_name("My_Project 1") == "my-project-1"
    assert dns_name("7b") == "rlx-7b"
    assert dns_name("é") == "rlx"
    long, other = dns_name("a" * 60), dns_name("a" * 61)
    assert long != other and len(long) == len(other) == LONGEST_NAME


@pytest.mark.parametrize(
    ("settings", "machines"),
    [
        ([], Machines(1, 1, 0)),
        (["trainer.device=cuda", "cluster.nproc=4"], Machines(1, 4, 4)),
        (["trainer.device=cuda", "cluster.nnodes=3", "cluster.n_gpus_per_node=8"], Machines(3, 8, 8)),
        (["cluster.pools={a: {gpus: 4}, b: {gpus: 4}}"], Machines(1, 8, 0)),
        (["cluster.pools={a: {gpus: 8}, b: {gpus: 8}}"], Machines(2, 8, 0)),
        (["cluster.pools={a: {gpus: 4, nodes: 2}, b: {gpus: 4}}"], Machines(3, 4, 0)),
        (["cluster.pools={a: {gpus: 4, nodes: 2}, b: {gpus: 4}}", "launch.gpus_per_node=8"], Machines(2, 8, 0)),
        (["cluster.pools={a: {gpus: 8, nodes: 2}, b: {gpus: 4, nodes: 2}}"], Machines(4, 8, 0)),
    ],
)
def test_machines_of_pools(settings, machines):
    roles = (
        ["actor.pool=a", "rollout.pool=a", "ref.pool=b", "actor.use_kl_loss=true"] if "pools" in str(settings) else []
    )
    assert job("smoke", "actor.ppo_mini_batch_size=16", *roles, *settings).machines == machines


def test_site_settings_reach_each_launcher():
    settings = [
        "trainer.device=cuda",
        "launch={cpus_per_rank: 5, memory_per_rank: 7, env: {NCCL_DEBUG: 'a b', FLAG: '0'}}",
        "launch.slurm={partition: gpu, account: me, qos: high, time: 1-00, max_restarts: 0, options: [--exclusive]}",
        "launch.slurm.save_before_s=300",
        "launch.kuberay={namespace: team, queue: night, mount: /disk, max_restarts: 9, claim: c, image: i}",
        "launch.docker={image: 'rlx:2', shm_size: 1g, options: [--network=host]}",
    ]
    one = job("smoke", *settings, name="n")
    slurm = render(Launcher.slurm, one)
    for line in (
        *(
            "partition=gpu",
            "account=me",
            "qos=high",
            "time=1-00",
            "no-requeue",
            "exclusive",
            "cpus-per-task=5",
            "mem=7G",
        ),
        *("signal=B:TERM@300", "gpus-per-node=1", "nodes=1"),
    ):
        assert f"\n#SBATCH --{line}\n" in slurm
    assert "\nexport NCCL_DEBUG='a b'\nexport FLAG=0\n" in slurm
    _, manifest = yaml.safe_load_all(render(Launcher.kuberay, one))
    assert manifest["metadata"]["namespace"] == "team"
    assert manifest["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "night"}
    assert manifest["spec"]["backoffLimit"] == 9
    container = manifest["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert {"name": "FLAG", "value": "0"} in container["env"]
    assert container["resources"]["limits"] == {"cpu": 5, "memory": "7Gi", "nvidia.com/gpu": 1}
    assert "default_local_dir=/disk/runs" in manifest["spec"]["entrypoint"]
    docker = render(Launcher.docker, one)
    for word in (
        "rlx:2 rlx train",
        "--shm-size=1g",
        "--network=host",
        "--gpus=1",
        "'--env=NCCL_DEBUG=a b'",
        "--memory=7g",
    ):
        assert word in docker
    assert json.dumps({"env_vars": {"NCCL_DEBUG": "a b", "FLAG": "0"}}) in render(Launcher.ray, one)


@pytest.mark.parametrize(
    ("launcher", "settings", "said"),
    [
        ("docker", ["cluster.nnodes=2"], "docker runs one machine, this configuration needs 2 machines"),
        ("kuberay", ["reward.custom_reward_function.path=absent.py"], "absent.py cannot be read"),
        ("kuberay", ["data.curriculum.path=absent.py"], "data.curriculum.path=absent.py cannot be read"),
        ("slurm", ["launch.slurm.time=tomorrow"], "launch.slurm.time='tomorrow'"),
        ("slurm", ["launch.slurm.partition='a\\nrm'"], "launch.slurm.partition"),
        ("slurm", ["launch.slurm.options=['a\\nb']"], "launch.slurm.options"),
        ("slurm", ["launch.env={A B: c}"], "'A B' is no name of an environment variable"),
        ("slurm", ["launch.gpus_per_node=1", "cluster.nproc=2"], "launch.gpus_per_node=1 has fewer"),
    ],
)
def test_what_a_launcher_cannot_do_is_said_before(launcher, settings, said, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    settings = [setting.replace("'a\\n", '"a\\n').replace("rm'", 'rm"').replace("b']", 'b"]') for setting in settings]
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        render(Launcher(launcher), job("smoke", *settings))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("launcher", "setting", "said", "stands"),
    [
        ("kuberay", "launch.kuberay.image=null", "needs launch.kuberay.image", "image: IMAGE"),
        ("kuberay", "launch.kuberay.claim=null", "needs launch.kuberay.claim", "claimName: CLAIM"),
        ("ray", "cluster.ray_address=null", "cluster.ray_address names none", "${RAY_ADDRESS:?"),
    ],
)
def test_what_a_site_has_not_said_has_a_placeholder(launcher, setting, said, stands, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    one = job("smoke", setting)
    (missing,) = lacks(Launcher(launcher), one)
    assert said in missing.message and missing.hint
    assert stands in render(Launcher(launcher), one)
    assert lacks(Launcher(launcher), job("smoke")) == []


# the command


@pytest.mark.parametrize("launcher", [*Launcher])
def test_a_dry_run_needs_nothing_of_a_site(rlx, launcher):
    done = rlx("train", "gsm8k-grpo", "--launcher", launcher.value, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    warned = [line for line in done.stderr.splitlines() if f"--launcher {launcher.value}" in line]
    assert len(warned) == {"ray": 1, "kuberay": 2}.get(launcher.value, 0)


@pytest.mark.parametrize("launcher", ["ray", "kuberay"])
def test_a_submission_without_what_it_needs_is_refused(rlx, launcher):
    done = rlx("train", "smoke", "--launcher", launcher)
    assert done.returncode == 1
    assert f"error: --launcher {launcher}" in done.stderr and "hint: " in done.stderr


def test_dry_run_prints_the_script_and_nothing_else(rlx, tmp_path):
    done = rlx("train", "smoke", f"trainer.experiment_name={ODD}", "--launcher", "slurm", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH")
    assert shellcheck(done.stdout) == ""
    assert [*tmp_path.iterdir()] == []
    as_json = rlx("train", "smoke", f"trainer.experiment_name={ODD}", "--launcher", "slurm", "--dry-run", "--json")
    assert json.loads(as_json.stdout)["script"].rstrip() == done.stdout.rstrip()


@pytest.mark.parametrize(
    ("launcher", "program", "words"),
    [("slurm", "sbatch", []), ("kuberay", "kubectl", ["apply", "-f", "-"])],
)
def test_the_script_goes_to_the_submitter(rlx, programs, launcher, program, words):
    fake(programs, program, "echo Submitted 77")
    command = ["train", "smoke", *SITE, "trainer.experiment_name=x", "--launcher", launcher]
    done = rlx(*command, env=first_on_path(programs))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Submitted 77\n"
    assert (programs / f"{program}.words").read_text().split() == words
    assert (programs / f"{program}.stdin").read_text().rstrip() == rlx(*command, "--dry-run").stdout.rstrip()
    answer = json.loads(rlx(*command, "--json", env=first_on_path(programs)).stdout)
    assert answer == {"launcher": launcher, "answer": "Submitted 77"}


def test_ray_gets_the_run_as_one_command(rlx, programs, tmp_path):
    (tmp_path / "a b").mkdir()
    fake(programs, "ray", "echo submitted")
    words = ["smoke", *SITE, f"trainer.experiment_name={ODD}", "launch.env={A: b c}"]
    done = rlx("train", *words, "--launcher", "ray", cwd=tmp_path / "a b", env=first_on_path(programs))
    assert done.returncode == 0, done.stderr
    said = (programs / "ray.words").read_text().splitlines()
    assert said[:5] == ["job", "submit", "--no-wait", "--runtime-env-json", json.dumps({"env_vars": {"A": "b c"}})]
    assert said[-len(words) - 1 :] == [*words, "cluster.ray_address=auto"]
    assert said[6:8] == ["bash", "-c"] and said[10] == str(tmp_path / "a b")
    # what Ray runs: fakes stand for rlx, which must get the words whole and the folder right
    rlx_itself = fake(programs, "uv", 'pwd >> "$0.words"')
    subprocess.run(said[6:], env=os.environ | first_on_path(programs), check=True, stdin=subprocess.DEVNULL)
    got = Path(f"{rlx_itself}.words").read_text().splitlines()
    assert got[-len(words) - 3 :] == ["train", *words, "cluster.ray_address=auto", str(tmp_path / "a b")]


def test_docker_takes_the_place_of_the_command(rlx, programs, tmp_path):
    fake(programs, "docker", "exit 7")
    words = ["smoke", f"trainer.experiment_name={ODD}", "launch.docker.image=rlx:1"]
    home = {"HOME": str(tmp_path / "home dir")}
    done = rlx("train", *words, "--launcher", "docker", "-v", env=first_on_path(programs) | home)
    assert done.returncode == 7, done.stderr
    said = (programs / "docker.words").read_text().splitlines()
    assert said[:3] == ["run", "--rm", "--init"]
    assert said[-7:] == ["rlx:1", "rlx", "train", *words, "-v"]
    assert f"{tmp_path}:/project" in said


@pytest.mark.parametrize("launcher", list(Launcher))
def test_a_missing_submitter_is_named_with_the_way_around(rlx, programs, launcher):
    programs.joinpath("bash").symlink_to("/bin/bash")
    words = ["train", "smoke", *SITE, "--launcher", launcher.value]
    done = rlx(*words, env={"PATH": str(programs)})
    assert done.returncode == 3
    program = {"slurm": "sbatch", "ray": "ray", "kuberay": "kubectl", "docker": "docker"}[launcher.value]
    error, hint = done.stderr.splitlines()[-2:]
    assert f"needs the program {program}" in error
    assert f"--launcher {launcher.value} --dry-run" in hint
    assert rlx(*words, "--dry-run", env={"PATH": str(programs)}).returncode == 0


def test_a_refusal_is_one_line_with_the_submitters_reason(rlx, programs):
    fake(programs, "sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    done = rlx("train", "smoke", "--launcher", "slurm", env=first_on_path(programs))
    assert done.returncode == 4
    assert "sbatch refused the job (exit 1): sbatch: error: invalid partition" in done.stderr


def test_a_taken_name_is_not_submitted(rlx, programs, tmp_path):
    sbatch = fake(programs, "sbatch")
    (tmp_path / "runs/smoke/first").mkdir(parents=True)
    words = ["train", "smoke", "trainer.experiment_name=first", "--launcher", "slurm"]
    done = rlx(*words, env=first_on_path(programs))
    assert done.returncode == 1 and "exists already" in done.stderr
    assert not Path(f"{sbatch}.words").exists()
    assert rlx(*words, "--resume", env=first_on_path(programs)).returncode == 0


def test_resume_names_the_newest_run(rlx, tmp_path):
    (tmp_path / "runs/smoke/smoke-1").mkdir(parents=True)
    script = rlx("train", "smoke", "--resume", "--launcher", "slurm", "--dry-run").stdout
    assert "trainer.experiment_name=smoke-1" in script
    assert script.count("--resume") == 1
