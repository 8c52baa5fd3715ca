"""One job works in a run directory at a time: of two that resume one run, each would cut back what the other writes."""

import fcntl
import os
from pathlib import Path

from verl_core.config.errors import UserError


def hold(run_dir: Path) -> None:
    """Holds `run_dir` until this process ends, however it ends; its children do not hold it.

    The folder itself is locked, without waiting and without a file that could stay behind; where the file system has no
    such locks nothing is held. Raises UserError when another process holds it.
    """
    try:
        folder = os.open(run_dir, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise UserError(
            f"another rlx is at work in {run_dir}",
            "wait until it ends, or stop it: run.json has its process id, last of `attempts`",
        ) from None
    except OSError:  # no such locks here; a folder that is absent is reported by the first read in it
        return
