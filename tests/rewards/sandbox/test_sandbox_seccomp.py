"""The filter of system calls, read by a small interpreter of BPF: what it answers to every call on both machines."""

import errno
import struct

import pytest

from verl_core.config.errors import EnvError
from verl_core.rewards.sandbox.seccomp import MACHINES, bpf_filter
from verl_core.rewards.sandbox.syscalls import CLONE, COMMON_ALLOWED, DENIED, DENIED_BY_ARGUMENT, FORKS, PRLIMIT

ALLOW, KILL = 0x7FFF0000, 0x80000000
THREAD = 0x3D0F00  # the flags of glibc's pthread_create


def answer(machine: str, number: int, argument: int = 0, second: int = 0, arch: int | None = None) -> int:
    """What the kernel would answer: a walk over the filter with one accumulator."""
    arch = MACHINES[machine][1] if arch is None else arch
    data = struct.pack("=iIQ6Q", number, arch, 0, argument, second, 0, 0, 0, 0)
    code = list(struct.iter_unpack("=HBBI", bpf_filter(machine)))
    at, accumulator = 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif operation == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
            at += if_true if holds else if_false


def error(code: int) -> int:
    return 0x00050000 | code


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_the_table_is_refused(machine: str) -> None:
    column = MACHINES[machine][0]
    for name, numbers in DENIED.items():
        if (number := numbers[column]) is not None:
            assert answer(machine, number) == error(errno.EPERM), name
    for name, numbers in FORKS.items():
        if (number := numbers[column]) is not None:
            assert answer(machine, number) == error(errno.EAGAIN), name


@pytest.mark.parametrize("machine", MACHINES)
def test_everything_else_that_is_known_is_allowed(machine: str) -> None:
    column = MACHINES[machine][0]
    refused = {numbers[column] for numbers in (*DENIED.values(), *FORKS.values())} | {CLONE[column]}
    for number in {*range(424), *COMMON_ALLOWED} - refused:
        assert answer(machine, number) == ALLOW, number
    for number in {*range(424, 1000), 0x40000000, 0x40000027, 0x7FFFFFFF} - set(COMMON_ALLOWED):
        assert answer(machine, number) == error(errno.ENOSYS), number


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_start_and_processes_do_not(machine: str) -> None:
    clone = CLONE[MACHINES[machine][0]]
    assert answer(machine, clone, THREAD) == ALLOW
    for flags in (0, 17, 0x01200011, 0x10000000, 0x7E020000):  # fork, glibc's fork, new namespaces
        assert answer(machine, clone, flags) == error(errno.EAGAIN)


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_that_reach_other_processes_are_refused(machine: str) -> None:
    column = MACHINES[machine][0]
    for name, (numbers, position, values) in DENIED_BY_ARGUMENT.items():
        for value in values:
            assert answer(machine, numbers[column], *[0] * position, value) == error(errno.EPERM), name
            assert answer(machine, numbers[column], *[0] * position, value + 1000) == ALLOW, name
    assert answer(machine, PRLIMIT[column], 1) == error(errno.EPERM)


def test_another_architecture_kills() -> None:
    for arch in (0x40000003, MACHINES["aarch64"][1]):
        assert answer("x86_64", 0, arch=arch) == KILL


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(EnvError, match="riscv64"):
        bpf_filter("riscv64")
