"""Becoming one of the jobs that need no run directory of their own: prepare, eval, merge, plot."""

import shlex
from collections.abc import Sequence

from rlx import ui
from rlx.env import interpreter, launch, manager


def become(job: str, args: Sequence[str], extras: Sequence[str], dry_run: bool = False) -> None:
    """Become the job in the environment of `extras`.

    A dry run becomes the job with --dry-run where its environment is at hand; where it is not, the launch line and a
    warning are all there is to say, and nothing is made.
    """
    if not dry_run:
        launch.become(job, args, extras)
    if interpreter.chosen() or manager.environment(extras).complete():
        launch.become(job, [*args, "--dry-run"], extras)
    environment = manager.environment(extras)
    ui.warn(f"the environment {environment.folder} is not there yet; a real run makes it")
    ui.out(shlex.join(launch.job_command(environment.python, job, args)))


def options(**values: object) -> list[str]:
    """Command-line words for the options that are set: `--name value`, and `--name` alone for True."""
    words: list[str] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words
