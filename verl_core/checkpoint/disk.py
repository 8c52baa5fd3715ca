"""What a disk refuses a rank, as errors that the process which controls the run can tell apart."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from verl_core.checkpoint.folders import Folder
from verl_core.config.errors import RunError
from verl_core.config.process import NO_SPACE

_SYSTEM = re.compile(r"\(os error (\d+)\)")


class DiskFull(RunError):
    """A rank has met a full disk. How much is missing says the process that has the whole checkpoint in view."""


@contextmanager
def writing_to(folder: Folder) -> Iterator[None]:
    """Raises RunError for what the system refuses, DiskFull where that is more space."""
    try:
        yield
    except Exception as error:
        if (number := _error_number(error)) is None:
            raise
        kind = DiskFull if number in NO_SPACE else RunError
        raise kind(f"could not write {folder}: {os.strerror(number)}") from error


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    told = _SYSTEM.search(str(error))  # tokenizers raises a plain Exception with what the system said
    return int(told[1]) if told else None
