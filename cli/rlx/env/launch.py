"""Becoming a job: the command's process turns into `<environment>/bin/python -m <job>`, so nothing outlives a kill."""

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rlx import ui
from rlx.env import interpreter, lockfile, manager
from verl_core.config.errors import EnvError
from verl_core.config.files import source_paths


def python_for(extras: Sequence[str], uses_gpu: bool = True) -> Path:
    """The interpreter a job with these extras runs in: RLX_PYTHON's, else that of an environment made if need be.

    `uses_gpu`: no environment is made for an NVIDIA driver that is too old for it.
    """
    named = interpreter.chosen()
    if named is None:
        return manager.ensure(manager.environment(extras), uses_gpu=uses_gpu).python
    interpreter.check(named, lockfile.check_extras(extras))
    return Path(named)


def planned_python(extras: Sequence[str]) -> Path:
    """As `python_for`, but makes and checks nothing."""
    named = interpreter.chosen()
    return Path(named) if named else manager.environment(extras).python


def job_command(python: Path, job: str, args: Sequence[str]) -> list[str]:
    """The words of a job's command line. -P: a file of the current folder must not shadow a package."""
    return [str(python), "-P", "-m", job, *args]


def child_variables(threads: int | None = None) -> dict[str, str]:
    """The variables rlx adds for a job; one the user has set stays as it is.

    `threads` is the size of OpenMP's pool, None to leave it alone. Waiting threads sleep instead of spinning, because a
    spinning pool beside another busy process makes everything several times slower.
    """
    wanted = {"PYTHONUTF8": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE"}
    if threads is not None:
        wanted["OMP_NUM_THREADS"] = str(threads)
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    sources = [str(path) for path in source_paths()]
    users = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sources]
    return {"PYTHONPATH": os.pathsep.join([*sources, *users]), **added}


def become(
    job: str, args: Sequence[str], extras: Sequence[str], threads: int | None = 1, uses_gpu: bool = False
) -> NoReturn:
    """Become the job in the environment of `extras`, made now if need be; `uses_gpu` as in `python_for`."""
    run_in(python_for(extras, uses_gpu), job, args, threads)


def run_in(python: Path, job: str, args: Sequence[str], threads: int | None) -> NoReturn:
    """Print the exact launch line on stderr and become the job. Ctrl-C waits until the job's packages are imported."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        execute(job_command(python, job, args), child_variables(threads))
    finally:  # it could not be started
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def execute(command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Print `command` with the variables that are added for it, and become it. EnvError when it cannot start."""
    shown = " ".join(f"{name}={_for_a_shell(name, value)}" for name, value in variables.items())
    ui.talk(f"launch: {shown} {shlex.join(command)}")
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    try:
        os.execvpe(command[0], list(command), {**os.environ, **variables})
    except OSError as problem:
        raise EnvError(f"{command[0]} cannot be started: {problem.strerror}", "rlx env ls") from problem


def _for_a_shell(name: str, value: str) -> str:
    """The value as a shell takes it; what only extends the present value shows that as `"$NAME"`."""
    present = os.environ.get(name)
    if present and value.endswith(os.pathsep + present):
        return f'{shlex.quote(value.removesuffix(present))}"${name}"'
    return shlex.quote(value)
