"""`rlx train --launcher`: a resolved command line rendered and submitted."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from rlx import rundir, ui
from rlx.launchers import Launcher, lacks, render
from rlx.launchers.job import Job
from rlx.launchers.submit import submit
from verl_core.config.compose import Resolved
from verl_core.config.effective import effective
from verl_core.config.unbuilt import unbuilt


def launch_run(
    launcher: Launcher, resolved: Resolved, words: Sequence[str], flags: Sequence[str], dry_run: bool, as_json: bool
) -> None:
    """Submit the run, or with `dry_run` print the script that would be submitted.

    `words` are those of `rlx train` (with `-f FILE`), `flags` its options that hold on the machines too. Raises
    UserError for a taken run name or what the launcher cannot do, and as `submit`.
    """
    job = Job(
        resolved.config,
        resolved.profile,
        tuple(words),
        tuple(flags),
        Path.cwd(),
        _run_name(launcher, resolved, "--resume" in flags),
    )
    script = render(launcher, job)
    missing = lacks(launcher, job)
    if dry_run:
        for error in missing:
            ui.warn(f"{error.message}; {error.hint}")
        for part in unbuilt(effective(resolved.config)):
            ui.warn(part)
        if as_json:
            ui.out_json({"launcher": launcher.value, "script": script})
        else:
            ui.out(script.rstrip("\n"))
        return
    if missing:
        raise missing[0]
    submit(launcher, script, _print_command(launcher, words, flags), as_json)


def _run_name(launcher: Launcher, resolved: Resolved, resume: bool) -> str | None:
    """The experiment name that is known before the run starts: a set one, under --resume the newest run's, and for
    KubeRay, which starts a failed run again, one of its own. None: Slurm takes its job's number, others the next free
    one."""
    if launcher is Launcher.kuberay:  # the runs lie on the claim, which is not here to look at
        named = resolved.config.trainer.experiment_name
        return named or f"{resolved.profile}-{time.strftime('%y%m%d-%H%M%S')}"
    planned = rundir.plan(resolved, resume)
    return planned.name if resume or resolved.config.trainer.experiment_name else None


def _print_command(launcher: Launcher, words: Sequence[str], flags: Sequence[str]) -> str:
    return shlex.join(["rlx", "train", *words, *flags, "--launcher", launcher.value, "--dry-run"])
