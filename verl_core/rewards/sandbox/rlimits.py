"""Programs as plain processes under the kernel's limits and the filter of system calls: weaker, for machines without
namespaces."""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from verl_core.rewards.sandbox.interpreter import interpreter
from verl_core.rewards.sandbox.local import LocalSandbox, Place
from verl_core.rewards.sandbox.protocol import Limits


class Rlimits(LocalSandbox):
    """One process without sockets, children, capabilities or more memory than it may have, in a session and a folder of
    its own.

    WEAKER than a namespace: it can read every file that this user can, the memory of this user's processes included
    where the kernel shows it to them, and write wherever this user can.
    """

    def command(self, python: Sequence[str], fds: Sequence[int], filter_fd: int, limits: Limits) -> list[str]:
        return [os.path.realpath(getattr(sys, "_base_executable", sys.executable)), *python]

    @contextmanager
    def place(self) -> Iterator[Place]:
        with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder:
            environment = {**interpreter().environment, "HOME": folder, "TMPDIR": folder}
            environment.pop("LD_LIBRARY_PATH", None)
            yield Place(folder, environment, own_session=True)
