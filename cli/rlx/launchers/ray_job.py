"""A job of a running Ray cluster, and the script that makes a machine part of one."""

import json
import os
import shlex

from rlx.launchers.job import Job
from rlx.templates import fill, rlx_command, shell_words
from verl_core.config.errors import UserError


def render(job: Job) -> str:
    """The script that submits. A project's script takes the cluster from RAY_ADDRESS where the configuration names
    none; UserError when neither does for one that is submitted now."""
    address = job.config.cluster.ray_address or (os.environ.get("RAY_ADDRESS") if job.folder else None)
    if address is None and job.folder:
        raise UserError(
            "--launcher ray submits to a running cluster, and cluster.ray_address names none",
            "cluster.ray_address=HOST:6379; to start one: `rlx env run PROFILE -- ray start --head`",
        )
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


def render_node(job: Job) -> str:
    """The script that starts one machine's part of a cluster."""
    return fill(
        "launch/ray-node.sh", {"rlx": shell_words(rlx_command()), "environment": "\n".join(["", *job.exports()])}
    )
