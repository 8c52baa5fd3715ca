"""Which environment variables of the job reach the ranks on other machines.

All of them, because a user who sets NCCL_DEBUG or a variable of their own code means the ranks, and what is set there
wins over what rlx or the node would set. Left out is what belongs to one machine or one process, and what is secret:
Ray shows a job's variables in its dashboard and logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NODES_OWN = re.compile(
    r"""
      PATH | LD_LIBRARY_PATH | LIBRARY_PATH | CPATH | MANPATH      # where this machine keeps its software
    | HOME | USER | LOGNAME | MAIL | SHELL | HOST | HOSTNAME | TMPDIR | TEMP | TMP | XDG_RUNTIME_DIR
    | PWD | OLDPWD | SHLVL | _ | TERM\w* | TTY | DISPLAY | WAYLAND_DISPLAY | LS_COLORS | PS1
    | VIRTUAL_ENV\w* | CONDA_\w+                                   # ranks run the job's interpreter by its path
    | BASH_FUNC_.* | SSH_\w+ | DBUS_\w+ | SUDO_\w+
    | \w+_VISIBLE_DEVICES | \w+_SERVICE_(HOST|PORT\w*) | \w+_PORT_\d+_\w+ | KUBERNETES_\w+
    | (RAY|SLURM|SLURMD|PMI|PMIX|OMPI|PRTE|PALS|FLUX|LSB|PBS)_\w+  # a scheduler's word to one process
    | MASTER_ADDR | MASTER_PORT | RANK | WORLD_SIZE | LOCAL_RANK
    """,
    re.VERBOSE,
)
_SECRET = re.compile(
    r"\w*(SECRET|PASSWORD|PASSWD|CREDENTIAL)\w*|\w*(TOKEN|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)", re.IGNORECASE
)


def carried(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the job that its ranks get, on whichever machine they run."""
    return {
        name: value for name, value in environ.items() if not _NODES_OWN.fullmatch(name) and not _SECRET.fullmatch(name)
    }
