"""The files of a project folder, rendered for a profile: what `rlx init` writes."""

import copy
import json
import re
import shlex

from rlx import templates
from rlx.launchers import docker, kuberay, ray_job, slurm
from rlx.launchers.job import Job
from verl_core.config.catalogue import entry
from verl_core.config.compose import resolve
from verl_core.config.effective import effective, uses_rollout
from verl_core.config.json_schema import json_schema
from verl_core.config.schema import RlxConfig
from verl_core.config.unbuilt import unbuilt

PURPOSE = {
    "rlx.yaml": "the configuration: what this project changes of the profile",
    "rlx.schema.json": "what an editor needs to complete and check `rlx.yaml`",
    "reward.py": "how an answer is scored",
    "test_reward.py": "the proof that it is scored right",
    "algorithm.py": "an algorithm of your own to start from; unused until `rlx.yaml` names it",
    "launch/slurm.sh": "the run as a Slurm job: `sbatch launch/slurm.sh`",
    "launch/ray.sh": "the run as a job of a Ray cluster: `RAY_ADDRESS=HOST:6379 bash launch/ray.sh`",
    "launch/ray-node.sh": "makes a machine part of a Ray cluster that such a run fits",
    "launch/kuberay.yaml": "the run on Kubernetes, its head says how",
    "launch/docker.sh": "the run in a container: `bash launch/docker.sh`",
}
ALGORITHM = """\
# algorithm:
#   module: algorithm.py              # algorithms of your own
#   name: mine

"""
REWARD = """\
reward:
  custom_reward_function:
    path: reward.py                   # yours; remove these lines to use the scorer of each row's data_source
    name: compute_score

"""


def render(project: str, profile: str) -> dict[str, str]:
    """Path inside the folder -> text. Commented keys show the profile's own values.

    A profile that learns from written answers gets no reward function, one of several machines no container.
    """
    config = resolve(profile).config
    name = re.sub(r"[^\w.-]+", "-", project, flags=re.ASCII).strip("-.") or "project"
    generates = uses_rollout(effective(config))
    config.trainer.project_name = name
    job = Job(config, profile)
    values = {
        "profile": profile,
        "project": name,
        "purpose": config.purpose.rstrip("."),
        "machines": str(job.machines),
        "alias": _alias(),
        "reward": REWARD if generates else "",
        "algorithm": ALGORITHM if generates else "",
        "rollout": _rollout(config) if generates else "",
        "test": "python test_reward.py\n" if generates else "",
        "model": config.model.path,
        "batch": config.data.train_batch_size,
        "prompt": config.data.max_prompt_length,
        "response": config.data.max_response_length,
        "mini": config.actor.ppo_mini_batch_size,
        "lr": config.actor.optim.lr,
    }
    files = {".gitignore": templates.fill("project/gitignore", values)}
    files["rlx.yaml"] = templates.fill("project/rlx.yaml", values)
    files["rlx.schema.json"] = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    for file in ("reward.py", "test_reward.py", "algorithm.py") if generates else ():
        files[file] = templates.fill(f"project/{file}", values)
    files |= _launch_files(job)
    rows = [f"| `{file}` | {PURPOSE[file]} |" for file in files if file in PURPOSE]
    files["README.md"] = templates.fill("project/README.md", values | {"files": "\n".join(rows)})
    return files


def _launch_files(job: Job) -> dict[str, str]:
    files = {
        "launch/slurm.sh": slurm.render(job),
        "launch/ray.sh": ray_job.render(job),
        "launch/ray-node.sh": ray_job.render_node(job),
        "launch/kuberay.yaml": kuberay.render(job),
    }
    if job.machines.count == 1:
        files["launch/docker.sh"] = docker.render(job)
    return files


def _alias() -> str:
    """What makes `rlx` a command where it runs from a checkout."""
    command = templates.rlx_command()
    return "" if command == ["rlx"] else f"alias rlx={shlex.quote(templates.shell_words(command))}\n"


def _rollout(config: RlxConfig) -> str:
    """The rollout section. An engine that is not built yet is replaced where the project then runs today."""
    asked, instead = config.rollout.engine, copy.deepcopy(config)
    instead.rollout.engine = "hf"
    lines = ["# rollout:"]
    if not entry("engine", asked).built and not [*unbuilt(effective(instead))]:
        lines = ["rollout:", f"  engine: hf  # the profile's own, {asked}, comes with a later release of rlx"]
    lines += [f"#   n: {config.rollout.n}  # answers a prompt", f"#   temperature: {config.rollout.temperature}"]
    return "\n".join(lines) + "\n\n"
