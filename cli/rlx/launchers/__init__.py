"""Launch scripts: one configuration as a Slurm job, a job of a Ray cluster, a KubeRay manifest or a container.

`job.py` says what is launched, one file a launcher renders it, `submit.py` hands it over.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum

from rlx.launchers import docker, kuberay, ray_job, slurm
from rlx.launchers.job import Job
from verl_core.config.errors import UserError


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

LACKS: dict[Launcher, Callable[[Job], Iterator[UserError]]] = {
    Launcher.ray: ray_job.lacks,
    Launcher.kuberay: kuberay.lacks,
    Launcher.docker: docker.lacks,
}


def render(launcher: Launcher, job: Job) -> str:
    """The script or manifest. UserError for a configuration that this launcher cannot run."""
    return RENDER[launcher](job)


def lacks(launcher: Launcher, job: Job) -> list[UserError]:
    """What the rendered script needs before it can be submitted; placeholders stand for it."""
    return [*LACKS[launcher](job)] if launcher in LACKS else []
