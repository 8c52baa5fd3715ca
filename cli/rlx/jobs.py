"""Becoming one of the jobs that need no run directory of their own: prepare, eval, merge, plot."""

import shlex
from collections.abc import Sequence
from typing import Any

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
    said = planned(job, args, extras)
    if as_json:
        ui.out_json(said)
    else:
        ui.out(said["launch"])


def planned(job: str, args: Sequence[str], extras: Sequence[str]) -> dict[str, Any]:
    """What a dry run says of a launch, making nothing: `launch`, the line; `absent`, what is not there yet, which it
    warns of as well."""
    line = shlex.join(launch.job_command(launch.planned_python(extras), job, args))
    absent = []
    if not interpreter.chosen() and not (environment := manager.environment(extras)).complete():
        absent.append(f"the environment {environment.folder} is not there yet; a real run makes it")
        ui.warn(absent[0])
    return {"dry_run": True, "launch": line, "absent": absent}


def options(**values: object) -> list[str]:
    """Command-line words for the options that are set: `--name value`, and `--name` alone for True."""
    words: list[str] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words
