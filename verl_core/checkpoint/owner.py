"""The process that a temporary folder belongs to, which its name says: what a dead one has left can be removed."""

import os
import socket


def host() -> str:
    """The name of this machine as a part of a file's name."""
    return socket.gethostname().replace("/", "_")


def runs_here(pid: int) -> bool:
    """Whether a process with this number runs on this machine, whoever's it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
