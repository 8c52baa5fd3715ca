"""Becoming one of the jobs that need no run directory of their own: prepare, eval, merge, plot."""

import shlex
from collections.abc import Sequence

from rlx import ui
from rlx.env import interpreter, launch, manager


def become(
    job: str,
    args: Sequence[str],
    extras: Sequence[str],
    dry_run: bool = False,
    as_json: bool = False,
    uses_gpu: bool = False,
) -> None:
    """Become the job in the environment of `extras`.

    A dry run becomes the job with --dry-run where its environment is at hand; where it is not, the launch line and a
    warning are all there is to say, and nothing is made. `as_json` is for that line; the job's own is among `args`.
    `uses_gpu`: no environment is made for an NVIDIA driver that is too old for it.
    """
    if not dry_run:
        launch.become(job, args, extras, uses_gpu=uses_gpu)
    if interpreter.chosen() or manager.environment(extras).complete():
        launch.become(job, [*args, "--dry-run"], extras)
    environment = manager.environment(extras)
    absent = f"the environment {environment.folder} is not there yet; a real run makes it"
    line = shlex.join(launch.job_command(environment.python, job, args))
    ui.warn(absent)
    if as_json:
        ui.out_json({"dry_run": True, "launch": line, "absent": [absent]})
    else:
        ui.out(line)


def options(**values: object) -> list[str]:
    """Command-line words for the options that are set: `--name value`, and `--name` alone for True."""
    words: list[str] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words
