"""The filter of system calls that the kernel runs for every call of a sandboxed program (seccomp, classic BPF)."""

import errno
import platform
import struct
from collections.abc import Iterator

from verl_core.config.errors import EnvError
from verl_core.rewards.sandbox.syscalls import (
    CLONE,
    CLONE3,
    COMMON_ALLOWED,
    COMMON_FROM,
    DENIED,
    DENIED_BY_ARGUMENT,
    FORKS,
    PRLIMIT,
)

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the table, AUDIT_ARCH of linux/audit.h

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # opcodes of linux/bpf_common.h
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000  # the second numbering of x86_64 kernels
_CLONE_THREAD = 0x00010000


def bpf_filter(machine: str | None = None) -> bytes:
    """The program as an array of struct sock_filter, for this machine or for `machine` (`platform.machine()`).

    What it says: a foreign architecture kills the process; starting a process is refused as if there were too many
    (EAGAIN), a thread is not; the calls of the tables are refused (EPERM), and new ones do not exist (ENOSYS).
    Raises EnvError for a machine whose numbers are not known.
    """
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise EnvError(
            f"no table of system calls for {machine}; the sandbox knows {', '.join(MACHINES)}",
            hint="run programs elsewhere: reward.sandbox.type=remote and reward.sandbox.url",
        )
    column, arch = MACHINES[machine]
    return b"".join(
        [
            _instruction(_LOAD, _ARCH),
            *_answer_if(_EQUAL, arch, _KILL, otherwise=True),
            _instruction(_LOAD, _NUMBER),
            *_answer_if(_AT_LEAST, _X32, _ERRNO | errno.ENOSYS),
            *(part for number in _numbers(FORKS, column) for part in _answer_if(_EQUAL, number, _ERRNO | errno.EAGAIN)),
            *(part for number in _numbers(DENIED, column) for part in _answer_if(_EQUAL, number, _ERRNO | errno.EPERM)),
            *_answer_if(_EQUAL, CLONE3, _ERRNO | errno.ENOSYS),  # its flags lie in memory, so libc must use clone
            *(part for number in COMMON_ALLOWED for part in _answer_if(_EQUAL, number, _ALLOW)),
            *_answer_if(_AT_LEAST, COMMON_FROM, _ERRNO | errno.ENOSYS),
            *(
                part
                for numbers, position, values in DENIED_BY_ARGUMENT.values()
                for part in _by_argument(
                    numbers[column], position, *(_answer_if(_EQUAL, value, _ERRNO | errno.EPERM) for value in values)
                )
            ),
            *_by_argument(PRLIMIT[column], 0, _answer_if(_EQUAL, 0, _ERRNO | errno.EPERM, otherwise=True)),  # itself
            *_by_argument(CLONE[column], 0, _answer_if(_ANY_BIT, _CLONE_THREAD, _ERRNO | errno.EAGAIN, otherwise=True)),
            _instruction(_RETURN, _ALLOW),
        ]
    )


def _numbers(table: dict[str, tuple[int | None, int | None]], column: int) -> list[int]:
    return [numbers[column] for numbers in table.values() if numbers[column] is not None]  # type: ignore[misc]


def _by_argument(number: int, position: int, *answers: tuple[bytes, bytes]) -> Iterator[bytes]:
    """What a call is answered by the low half of one of its arguments; allowed where none of `answers` holds."""
    yield _instruction(_EQUAL, number, 0, 2 + 2 * len(answers))
    yield _instruction(_LOAD, _ARGUMENTS + 8 * position)
    for answer in answers:
        yield from answer
    yield _instruction(_RETURN, _ALLOW)


def _answer_if(test: int, value: int, answer: int, *, otherwise: bool = False) -> tuple[bytes, bytes]:
    """Ends with `answer` when the test holds (`otherwise`: when it does not), else goes on behind."""
    skip = (1, 0) if otherwise else (0, 1)
    return _instruction(test, value, *skip), _instruction(_RETURN, answer)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
