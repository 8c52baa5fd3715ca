"""A batch script of Slurm: one machine runs `rlx train`, several get a Ray cluster of their own first."""

import re
import shlex

from rlx.launchers.job import Job, one_line
from rlx.templates import fill, rlx_command, shell_words
from verl_core.config.errors import UserError

_TIME = re.compile(r"\d+|(\d+:)?\d+:\d\d|\d+-\d+(:\d\d){0,2}")


def render(job: Job) -> str:
    """The script. UserError for settings of launch.slurm that are no line of a script."""
    slurm, machines = job.launch.slurm, job.machines
    setup = [one_line("launch.slurm.setup", line) for line in slurm.setup]
    cluster = "slurm_one_machine.sh" if machines.count == 1 else "slurm_cluster.sh"
    inside = "\n  ".join(setup or [":  # launch.slurm.setup has nothing"])
    return fill(
        "launch/slurm.sh",
        {
            "options": "\n".join(f"#SBATCH {option}" for option in options(job)),
            "title": job.title,
            "save_before": slurm.save_before_s,
            "max_restarts": slurm.max_restarts,
            "environment": "\n".join(["", *job.exports(), *setup]),
            "folder": shlex.quote(str(job.folder)) if job.folder else '"${SLURM_SUBMIT_DIR:-.}"',
            "rlx": shell_words(rlx_command()),
            "words": job.script_words,
            "name": '"slurm-${SLURM_JOB_ID:-0}"' if job.name is None else shlex.quote(job.name),
            "flags": shell_words(dict.fromkeys(("--resume", *job.flags))),
            "cluster": fill(f"launch/{cluster}", {"nodes": machines.count, "setup": inside}),
        },
    )


def options(job: Job) -> list[str]:
    """The options of sbatch, one a line."""
    slurm, machines = job.launch.slurm, job.machines
    if not _TIME.fullmatch(slurm.time):
        raise UserError(f"launch.slurm.time={slurm.time!r} is no time limit of Slurm", "launch.slurm.time=1-12:00:00")
    lines = [
        f"--job-name={re.sub(r'[^A-Za-z0-9_.-]+', '-', job.config.trainer.project_name)}",
        f"--nodes={machines.count}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={machines.ranks * job.launch.cpus_per_rank}",
    ]
    if machines.gpus:
        lines.append(f"--gpus-per-node={machines.gpus}")
    if job.launch.memory_per_rank:
        lines.append(f"--mem={machines.ranks * job.launch.memory_per_rank}G")
    lines += [f"--time={slurm.time}", f"--signal=B:TERM@{slurm.save_before_s}"]
    lines.append("--requeue" if slurm.max_restarts else "--no-requeue")
    lines += ["--open-mode=append", "--output=slurm-%j.log"]
    for name in ("partition", "account", "qos"):
        if (value := getattr(slurm, name)) is not None:
            lines.append(f"--{name}={shlex.quote(one_line(f'launch.slurm.{name}', value))}")
    return lines + [one_line("launch.slurm.options", option) for option in slurm.options]
