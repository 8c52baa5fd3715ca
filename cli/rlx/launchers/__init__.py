"""Launch scripts: one configuration as a Slurm job, a job of a Ray cluster, a KubeRay manifest or a container.

`job.py` says what is launched, one file a launcher renders it, `submit.py` hands it over.
"""

from collections.abc import Callable
from enum import StrEnum

from rlx.launchers import docker, kuberay, ray_job, slurm
from rlx.launchers.job import Job


class Launcher(StrEnum):
    slurm = "slurm"
    ray = "ray"
    kuberay = "kuberay"
    docker = "docker"


RENDER: dict[Launcher, Callable[[Job], str]] = {
    Launcher.slurm: slurm.render,
    Launcher.ray: ray_job.render,
    Launcher.kuberay: kuberay.render,
    Launcher.docker: docker.render,
}


def render(launcher: Launcher, job: Job) -> str:
    """The script or manifest. UserError for a configuration that this launcher cannot run."""
    return RENDER[launcher](job)
