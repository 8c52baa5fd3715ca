"""Hands a rendered script to the program that runs it."""

import os
import shutil
import subprocess

from rlx import ui
from rlx.launchers import Launcher
from verl_core.config.errors import EnvError, MachineError

PROGRAMS = {
    Launcher.slurm: ["sbatch"],
    Launcher.ray: ["ray"],
    Launcher.kuberay: ["kubectl"],
    Launcher.docker: ["docker"],
}
_COMMANDS = {
    Launcher.slurm: ["sbatch"],
    Launcher.ray: ["bash", "-s"],
    Launcher.kuberay: ["kubectl", "apply", "-f", "-"],
}
_NEXT = {
    Launcher.slurm: "watch it: squeue --me, tail -f slurm-JOB.log; stop it: scancel --batch --signal=TERM JOB",
    Launcher.ray: "watch it: ray job logs --follow ID; stop it: ray job stop ID",
    Launcher.kuberay: "watch it: kubectl get rayjob, kubectl logs; stop it: kubectl delete rayjob NAME",
}


def submit(launcher: Launcher, script: str, print_command: str, as_json: bool = False) -> None:
    """Submit the script and print what the program answers; a container runs in the foreground, in place of this
    process. `print_command` is what prints the script instead.

    Raises EnvError when the program is not installed and MachineError when it refuses.
    """
    (program,) = PROGRAMS[launcher]
    if shutil.which(program) is None:
        raise EnvError(
            f"--launcher {launcher.value} needs the program {program}, which is not on PATH",
            f"print the script and submit it where {program} is: {print_command}",
        )
    if launcher is Launcher.docker:
        os.execvp("bash", ["bash", "-c", script, "rlx"])
    command = _COMMANDS[launcher]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    answer, complaint = done.stdout.strip(), done.stderr.strip()
    if done.returncode:
        said = " ".join((complaint or answer).split()) or "it gave no reason"
        raise MachineError(
            f"{program} refused the job (exit {done.returncode}): {said}", f"see what was submitted: {print_command}"
        )
    if complaint:
        ui.talk(complaint)
    if as_json:
        ui.out_json({"launcher": launcher.value, "answer": answer})
    else:
        ui.out(answer)
    ui.talk(_NEXT[launcher])
