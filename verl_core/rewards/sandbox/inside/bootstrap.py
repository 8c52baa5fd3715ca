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


def give_up_rights(instructions):
    """Root's capabilities go, so that limits hold and other processes are out of reach; so does the right of others to
    look into this process; last the filter comes."""
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    program = ctypes.byref(Program(len(instructions) // 8, instructions))
    version_3, no_capabilities = (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()  # linux/capability.h
    die_with_parent, hide, no_new_privileges, set_filter = (1, 9), (4, 0), (38, 1, 0, 0, 0), (22, 2)  # linux/prctl.h
    steps = (die_with_parent, hide, no_new_privileges, (*set_filter, program))
    if libc.capset(version_3, no_capabilities) or any(libc.prctl(*words) for words in steps):
        raise OSError(ctypes.get_errno(), "rights cannot be given up")


def content(fd):
    with os.fdopen(fd, "rb") as f:
        return f.read()


def main(program_fd, filter_fd, *limits):
    """The compiled program, and the names of the module that it is."""
    if filter_fd >= 0:
        give_up_rights(content(filter_fd))
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
