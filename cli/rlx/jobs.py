"""Becoming one of the jobs that need no run directory of their own: prepare, eval, merge, plot."""

import shlex
import sys
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlx import ui
from rlx.env import interpreter, launch, manager

_PACKAGES = {"s3": "s3fs", "gcs": "gcsfs"}
"""The module by which an extra is known to be there."""


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


def with_packages(extras: Collection[str]) -> None:
    """Goes on as this same command in an environment with these extras, where the interpreter lacks one's package."""
    if all(find_spec(_PACKAGES[extra]) for extra in extras):
        return
    trained_with = ("fsdp", *sorted(extras))  # more than is needed, but there where runs were made
    wanted = trained_with if manager.environment(trained_with).complete() else tuple(sorted(extras))
    if (python := launch.python_for(wanted, uses_gpu=False)).absolute() != Path(sys.executable).absolute():
        launch.run_in(python, "rlx", sys.argv[1:], None)


def options(**values: object) -> list[str]:
    """Command-line words for the options that are set: `--name value`, and `--name` alone for True."""
    words: list[str] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words
