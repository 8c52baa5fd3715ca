"""What runs in an engine's process: `python -m verl_core.rollout.child.host FD`, FD being its end of a socket."""

from __future__ import annotations

import os
import sys

from verl_core.rollout.child import guard


def main() -> None:
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    guard.split(fd)

    from multiprocessing.connection import Connection  # after the fork: the guard needs none of this

    from verl_core.rollout.child.serve import Host
    from verl_core.rollout.child.wire import Wire

    Host(Wire(Connection(fd))).run()


if __name__ == "__main__":
    main()
