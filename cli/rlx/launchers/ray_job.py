"""A job of a running Ray cluster, and the script that makes a machine part of one."""

import json
import os
import shlex
from collections.abc import Iterator

from rlx.launchers.job import Job
from rlx.templates import fill, rlx_command, shell_words
from verl_core.config.errors import UserError


def render(job: Job) -> str:
    """The script that submits. It takes the cluster from RAY_ADDRESS where the configuration names none."""
    address = _address(job)
    job.exports()  # names are checked
    return fill(
        "launch/ray.sh",
        {
            "title": job.title,
            "folder": job.script_folder,
            "address": shlex.quote(address) if address else '"${RAY_ADDRESS:?HOST:PORT of the Ray cluster}"',
            "rlx": shell_words(rlx_command()),
            "words": job.script_words,
            "flags": "".join(f" {flag}" for flag in job.flags),
            "runtime_env": shlex.quote(json.dumps({"env_vars": job.launch.env})),
        },
    )


def lacks(job: Job) -> Iterator[UserError]:
    """What the script needs before it can be submitted."""
    if _address(job) is None:
        yield UserError(
            "--launcher ray submits to a running cluster, and cluster.ray_address names none",
            "cluster.ray_address=HOST:6379; to start one: `rlx env run PROFILE -- ray start --head`",
        )


def render_node(job: Job) -> str:
    """The script that starts one machine's part of a cluster."""
    return fill(
        "launch/ray-node.sh", {"rlx": shell_words(rlx_command()), "environment": "\n".join(["", *job.exports()])}
    )


def _address(job: Job) -> str | None:
    """The configuration's cluster, or RAY_ADDRESS for a script of this moment; a project's reads it when it is run."""
    return job.config.cluster.ray_address or (os.environ.get("RAY_ADDRESS") if job.folder else None)
