"""Programs in namespaces of their own, by bubblewrap (`bwrap`, 0.7 or later)."""

from collections.abc import Sequence

from verl_core.rewards.sandbox.interpreter import interpreter
from verl_core.rewards.sandbox.local import LocalSandbox, found, kernel_at_least
from verl_core.rewards.sandbox.protocol import Limits

_NOBODY = "65534"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


class Bubblewrap(LocalSandbox):
    """User, process, network, IPC, host name, cgroup and mount namespaces for each program; no capabilities. It sees
    the system's libraries and the interpreter, read-only, four devices, and its own /tmp in memory. No /proc, no
    network device, no variable of ours; when bwrap or the process that started it dies, the kernel kills all of it.

    Raises EnvError where there is no bwrap.
    """

    filter_from_inside = False

    def __init__(self) -> None:
        self._bwrap = found("bwrap", "bubblewrap")
        self.counts_threads = kernel_at_least(5, 14)  # before that, RLIMIT_NPROC counted the user's processes outside

    def command(self, python: Sequence[str], fds: Sequence[int], filter_fd: int, limits: Limits) -> list[str]:
        inside = interpreter()
        return [
            self._bwrap,
            *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
            *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *("--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox", "--clearenv"),
            *(word for name, value in inside.environment.items() for word in ("--setenv", name, value)),
            *(word for outside, path in inside.folders for word in ("--ro-bind", outside, path)),
            *(word for target, link in inside.links for word in ("--symlink", target, link)),
            *(word for device in _DEVICES for word in ("--dev-bind", device, device)),
            *("--size", str(limits.tmp_mb << 20), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"),
            *("--seccomp", str(filter_fd), "--", inside.executable, *python),
        ]
