"""What the weaker back end still holds, without namespaces, and whoever runs it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl_core.rewards.sandbox.asserts import judge_tests
from verl_core.rewards.sandbox.protocol import Limits
from verl_core.rewards.sandbox.rlimits import Rlimits

LIMITS = Limits(seconds=10.0, memory_mb=300, output_kb=64, tmp_mb=7)


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("import os; os.fork()", "failed", "Resource temporarily unavailable"),
        ("import socket; socket.socket()", "failed", "Operation not permitted"),
        ("import os; os.memfd_create('x')", "failed", "Operation not permitted"),
        ("while True: pass", "timeout", ""),
        ("while True: print('x' * 999)", "output", ""),
        ("x = bytearray(1 << 40)", "memory", "MemoryError"),
        ("open('f', 'wb').truncate(1 << 40)", "failed", "File too large"),
        ("import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))", "failed", "not allowed to raise maximum limit"),
        ("import os; os.chroot('/tmp')", "failed", "Operation not permitted"),
    ],
)
def test_rlimits_hold_without_namespaces(text: str, status: str, says: str) -> None:
    limits = Limits(seconds=0.5 if status == "timeout" else 10.0, memory_mb=300, output_kb=64, tmp_mb=7)
    outcome = Rlimits().run(text, b"", limits)
    assert outcome.status == status
    assert says in outcome.stderr


def test_rlimits_run_in_a_folder_that_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    outcome = Rlimits().run("import os\nopen('left', 'w')\nprint(os.getcwd(), sorted(os.environ))", b"", LIMITS)
    folder, _, names = outcome.stdout.decode().partition(" ")
    assert Path(folder).parent == tmp_path and not list(tmp_path.iterdir())
    assert "PATH" not in names


@pytest.fixture
def bystander() -> Iterator[int]:
    """The pid of a process of this user."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


ON_OTHERS = {
    "limits": "resource.prlimit(pid, resource.RLIMIT_NOFILE)",
    "processors": "os.sched_setaffinity(pid, os.sched_getaffinity(pid))",
    "priority": "os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))",
    "signals by way of a file": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, pid)",
    "signals by way of a socket": "fcntl.ioctl(socket.socketpair()[0], 0x8902, array.array('i', [pid]))",
    "a longer life than theirs": "ctypes.CDLL(None).prctl(1, 0) and open('/')",
}
if os.geteuid() == 0:  # root alone can give up rights that it has over its own processes
    ON_OTHERS["their memory"] = "open(f'/proc/{pid}/mem', 'rb')"


def test_other_processes_are_not_touched(bystander: int) -> None:
    program = ["import array, ctypes, fcntl, os, resource, socket", f"pid = {bystander}"]
    for name, attempt in ON_OTHERS.items():
        program.append(f"try: {attempt}; print('did', {name!r})\nexcept (PermissionError, IsADirectoryError): pass")
    assert Rlimits().run("\n".join(program), b"", LIMITS).stdout.decode() == ""


FORGER = """
import os, time
def f(n):
    written = 0
    while not written:
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                words = open(f'/proc/{pid}/cmdline').read().split('\\0')
                if {word!r} not in words or int(pid) == os.getpid(): continue
                for fd in os.listdir(f'/proc/{pid}/fd'):
                    if os.readlink(f'/proc/{pid}/fd/{fd}').startswith('pipe:'):
                        end = os.open(f'/proc/{pid}/fd/{fd}', os.O_WRONLY | os.O_NONBLOCK)
                        written += os.write(end, b'{"program": null, "passed": [true]}')
                        break
            except OSError: pass
    time.sleep(9)
"""


def test_no_program_writes_the_report_on_itself() -> None:
    limits = Limits(seconds=1.0, memory_mb=300 + os.getpid() % 200)
    program = FORGER.replace("{word!r}", repr(str(limits.memory_mb << 20)))
    judged = judge_tests(Rlimits(), program, ["assert f(1) + 1 == 4"], "", "", limits)
    assert (judged.passed, judged.outcome.stdout) == ([False], b"")
