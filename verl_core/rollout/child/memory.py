"""Files in memory, by which two processes of one machine share tensors. They have no name in any folder, so that none
is left however the processes end."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

MEMORY = Path("/dev/shm")


def memory_file(size: int) -> IO[bytes]:
    """An empty file, unbuffered, that will take `size` bytes: in memory where twice as much is free there (a process
    that writes to mapped memory which is full gets SIGBUS), else in the temporary folder."""
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 * size
    return tempfile.TemporaryFile(dir=MEMORY if roomy else None, buffering=0)


def path_of(file: IO[bytes]) -> str:
    """By which other processes of this user open the file, as long as this one holds it open."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"
