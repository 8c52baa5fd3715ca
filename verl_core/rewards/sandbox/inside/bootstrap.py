"""First words of the interpreter in a sandbox: takes its limits upon itself, then becomes the program.

`python -c <this> PROGRAM_FD FILTER_FD CPU_S MEMORY_BYTES FILE_BYTES FILES TASKS [the program's arguments]`.
PROGRAM_FD is a socket: one byte goes out when the limits hold, and when the death of whoever started this would end it;
only then `p` and the program come in. FILTER_FD is the filter of system calls where nobody outside has set it, else -1;
TASKS is 0 where threads are not counted.
"""

import os
import resource
import sys


def limit(cpu_s, memory, file_bytes, files, tasks):
    limits = [
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),  # a signal that can be caught, and a second later one that cannot
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, file_bytes, file_bytes),
        (resource.RLIMIT_NOFILE, files, files),
        (resource.RLIMIT_CORE, 0, 0),
    ]
    if tasks:
        limits.append((resource.RLIMIT_NPROC, tasks, tasks))
    for kind, soft, hard in limits:
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))


def filter_calls(instructions):
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    die_with_parent, no_new_privileges, set_filter = (1, 9), (38, 1, 0, 0, 0), (22, 2)  # linux/prctl.h, seccomp.h
    program = ctypes.byref(Program(len(instructions) // 8, instructions))
    for words in (die_with_parent, no_new_privileges, (*set_filter, program)):
        if libc.prctl(*words):
            raise OSError(ctypes.get_errno(), "the filter of system calls cannot be set")


def content(fd):
    with os.fdopen(fd, "rb") as f:
        return f.read()


def main(program_fd, filter_fd, *limits):
    """The compiled program, and the names of the module that it is."""
    if filter_fd >= 0:
        filter_calls(content(filter_fd))
    limit(*limits)
    os.write(program_fd, b"r")
    text = content(program_fd)
    if not text:
        os._exit(1)  # nobody is there any more
    module = sys.modules["__main__"] = type(sys)("__main__")
    return compile(text[1:], "main.py", "exec", dont_inherit=True), vars(module)


if __name__ == "__main__":
    numbers, sys.argv[:] = sys.argv[1:8], ["main.py", *sys.argv[8:]]
    exec(*main(*map(int, numbers)))
