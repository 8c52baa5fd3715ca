"""Programs in namespaces of their own, by nsjail (3.0 or later). Its command line is tested, its doing is not: no
machine of the tests has it."""

import math
from collections.abc import Sequence

from verl_core.rewards.sandbox.interpreter import interpreter
from verl_core.rewards.sandbox.local import OPEN_FILES, LocalSandbox, found
from verl_core.rewards.sandbox.protocol import Limits

_NOBODY = "65534"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_FILES = 4096  # files in /tmp


class Nsjail(LocalSandbox):
    """As `Bubblewrap`; the interpreter sets the filter of system calls itself, because nsjail takes none in binary.

    Raises EnvError where there is no nsjail.
    """

    counts_threads = True

    def __init__(self) -> None:
        self._nsjail = found("nsjail", "nsjail")

    def command(self, python: Sequence[str], fds: Sequence[int], filter_fd: int, limits: Limits) -> list[str]:
        inside = interpreter()
        tmp = f"none:/tmp:tmpfs:size={limits.tmp_mb << 20},nr_inodes={_FILES}"
        return [
            self._nsjail,
            *("--mode", "o", "--really_quiet", "--iface_no_lo", "--disable_proc", "--hostname", "sandbox"),
            *("--user", _NOBODY, "--group", _NOBODY, "--cwd", "/tmp"),
            *(word for fd in fds for word in ("--pass_fd", str(fd))),
            *(word for name, value in inside.environment.items() for word in ("--env", f"{name}={value}")),
            *(word for outside, path in inside.folders for word in ("--bindmount_ro", f"{outside}:{path}")),
            *(word for target, link in inside.links for word in ("--symlink", f"{target}:{link}")),
            *(word for device in _DEVICES for word in ("--bindmount", f"{device}:{device}")),
            *("--mount", tmp, "--time_limit", str(math.ceil(limits.seconds) + 1)),
            *("--rlimit_as", str(limits.memory_mb), "--rlimit_fsize", str(limits.tmp_mb)),
            *("--rlimit_cpu", str(math.ceil(limits.seconds) + 1), "--rlimit_nofile", str(OPEN_FILES)),
            *("--", inside.executable, *python),
        ]
