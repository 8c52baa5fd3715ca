"""A container on this machine."""

import shlex
from collections.abc import Iterator

from rlx.launchers.job import Job, one_line
from rlx.templates import fill, shell_words
from verl_core.config.errors import UserError
from verl_core.config.files import data_root

SECRETS = ("HF_TOKEN", "WANDB_API_KEY")
"""Variables handed on from the shell by name, so that their values stand in no script."""


def render(job: Job) -> str:
    """The script. Without an image it mounts this checkout, or the one that RLX_HOME names where rlx is an installed
    package. UserError for a configuration of several machines."""
    docker, machines = job.launch.docker, job.machines
    if machines.count > 1:
        raise UserError(
            f"--launcher docker runs one machine, this configuration needs {machines}",
            "--launcher slurm, ray or kuberay; or one pool on one machine: cluster.nnodes=1",
        )
    job.exports()  # names are checked
    options = ["--rm", "--init", "--stop-timeout=300", f"--shm-size={docker.shm_size}", "--ulimit=memlock=-1"]
    options += [f"--gpus={machines.gpus}"] if machines.gpus else []
    options += [f"--memory={machines.ranks * job.launch.memory_per_rank}g"] if job.launch.memory_per_rank else []
    options += [f"--env={name}" for name in SECRETS if name not in job.launch.env]
    options += [f"--env={name}={value}" for name, value in job.launch.env.items()]
    options += [one_line("launch.docker.options", option) for option in docker.options]
    values = {
        "title": job.title,
        "folder": job.script_folder,
        "options": shell_words(options),
        "words": job.script_words,
        "flags": "".join(f" {flag}" for flag in job.flags),
    }
    if docker.image is not None:
        image = shlex.quote(one_line("launch.docker.image", docker.image))
        return fill("launch/docker_image.sh", values | {"image": image})
    checkout = shlex.quote(str(data_root())) if _in_checkout() else '"${RLX_HOME:?rlx checkout}"'
    return fill("launch/docker_checkout.sh", values | {"checkout": checkout})


def lacks(job: Job) -> Iterator[UserError]:
    """What the script needs before it can be run."""
    if job.launch.docker.image is None and not _in_checkout():
        yield UserError(
            "--launcher docker mounts a checkout of rlx, and this rlx is an installed package",
            "launch.docker.image=IMAGE names an image that has rlx",
        )


def _in_checkout() -> bool:
    return (data_root() / "cli").is_dir()
