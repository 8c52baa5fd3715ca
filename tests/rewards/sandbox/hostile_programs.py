# ruff: noqa: E501 (a program is easier to read where it is one line)
"""Programs that try to get out of the sandbox, and what must be observed instead.

Each asks for the right to do harm, and does none if it gets it: a sandbox that is broken must fail its tests, not the
machine.
"""

import os
import textwrap
from dataclasses import dataclass

MARK = "hostile-was-here"  # name of every file that a program tries to leave behind


@dataclass(frozen=True)
class Hostile:
    name: str
    program: str
    status: str = "ok"
    stdout: str | None = None
    """All that it prints, without the last line break; None: not looked at."""
    says: str = ""
    """What its stderr must contain."""
    stdin: bytes = b""


def refused(name: str, body: str) -> Hostile:
    """The body must raise OSError, and nothing else: a program that is broken tests nothing."""
    program = (
        "import ctypes, os, resource, socket, subprocess, sys, time\n"
        "def syscall(number, *args):\n"
        "    libc = ctypes.CDLL(None, use_errno=True)\n"
        "    if libc.syscall(number, *args) == -1:\n"
        "        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))\n"
        f"def attempt():\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
        "try:\n    attempt()\n    print('ESCAPED')\n"
        "except OSError:\n    print('refused')\n"
    )
    return Hostile(name, program, stdout="refused")


def stopped(name: str, status: str, program: str, says: str = "") -> Hostile:
    return Hostile(name, textwrap.dedent(program), status, says=says)


def harmless(name: str, program: str, stdout: str) -> Hostile:
    """It does what it likes, and ends well, with this to tell."""
    return Hostile(name, textwrap.dedent(program), stdout=stdout)


PROCESSES = [
    refused("fork", "os.fork()"),
    refused("forkpty", "os.forkpty()"),
    refused("subprocess", "subprocess.run([sys.executable, '-c', 'pass'])"),
    refused("posix_spawn", "os.posix_spawn(sys.executable, [sys.executable], {})"),
    refused("system", "if os.system('true') != 0: raise OSError"),
    refused(
        "multiprocessing", "import multiprocessing as m; p = m.get_context('fork').Process(target=print); p.start()"
    ),
    refused("process pool", "from concurrent.futures import ProcessPoolExecutor as P; P(1).submit(print).result()"),
    refused("daemon", "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)"),
    refused("shell", "os.execv('/bin/sh', ['sh'])"),
    refused("other program", "os.execv('/usr/bin/env', ['env'])"),
    refused(
        "program of its own",
        "os.write(os.open('/tmp/x', os.O_CREAT | os.O_WRONLY, 0o755), b'#!/bin/sh'); os.execv('/tmp/x', ['x'])",
    ),
    refused("signal to a process", "os.kill(os.getpid(), 0)"),
    refused("signal to a thread", "import signal, threading; signal.pthread_kill(threading.get_ident(), 0)"),
    refused("signal to init", "os.kill(1, 0)"),
    refused("signal to the parent", "os.kill(os.getppid(), 0)"),
    refused("signal to everybody", "os.kill(-1, 0)"),
    refused("signal to the session", "os.killpg(0, 0)"),
    refused("pidfd of init", "os.pidfd_open(1)"),
    refused("signal by way of a file", "import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, 1)"),
    harmless("parent", "import os\nprint(os.getppid())", "1"),
    stopped(
        "fork bomb",
        "timeout",
        """
        import os
        while True:
            try:
                if os.fork() == 0: os._exit(0)
            except OSError: pass
    """,
    ),
    stopped(
        "thread bomb",
        "timeout",
        """
        import threading, time
        for _ in range(100000): threading.Thread(target=time.sleep, args=(60,)).start()
    """,
    ),
    stopped(
        "threads of little memory",
        "threads" if os.geteuid() == 0 else "timeout",  # root's are not counted by the kernel
        "import threading, time\nthreading.stack_size(32768)\n"
        "for _ in range(2000): threading.Thread(target=time.sleep, args=(60,)).start()",
    ),
    stopped(
        "execs itself for ever",
        "timeout",
        """
        import os, sys
        code = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], sys.argv[1]])"
        os.execv(sys.executable, [sys.executable, '-c', code, code])
    """,
    ),
]

NETWORK = [
    refused("tcp", "socket.create_connection(('127.0.0.1', 22))"),
    refused("udp", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))"),
    refused("ipv6", "socket.socket(socket.AF_INET6)"),
    refused("listening", "socket.create_server(('', 8000))"),
    refused("unix socket", "socket.socket(socket.AF_UNIX).connect('/run/dbus/system_bus_socket')"),
    refused("abstract unix socket", "socket.socket(socket.AF_UNIX).bind('\\0hostile')"),
    refused("netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    refused("packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    refused("raw", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    refused("vsock", "socket.socket(socket.AF_VSOCK)"),
    refused("crypto of the kernel", "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)"),
    refused("names", "socket.getaddrinfo('example.com', 80)"),
    refused("http", "import urllib.request; urllib.request.urlopen('http://169.254.169.254/', timeout=1)"),
    refused("asyncio", "import asyncio; asyncio.run(asyncio.open_connection('127.0.0.1', 80))"),
    refused("network devices", "socket.if_nameindex()[1]"),
]

FILES = [
    refused("passwords", "open('/etc/shadow').read()"),
    refused("users", "open('/etc/passwd').read()"),
    refused("root's folder", "os.listdir('/root')"),
    refused("home folders", "os.listdir('/home')"),
    refused("this project", "os.listdir({project!r})"),
    refused("a file of the machine's /tmp", "open({canary!r}).read()"),
    refused("through a symlink", "os.symlink({canary!r}, '/tmp/link'); open('/tmp/link').read()"),
    refused("up and down", "open('/tmp/../../../..' + {canary!r}).read()"),
    refused("symlink loop", "os.symlink('/tmp/a', '/tmp/b'); os.symlink('/tmp/b', '/tmp/a'); open('/tmp/a')"),
    refused("hard link", "os.link(sys.executable, '/tmp/python')"),
    refused("environment of init", "open('/proc/1/environ').read()"),
    refused("memory through /proc", "open('/proc/self/mem', 'r+b')"),
    refused("files through /proc", "os.listdir('/proc/self/fd')"),
    refused("root through /proc", "os.listdir('/proc/1/root')"),
    refused("settings of the kernel", "open('/proc/sys/kernel/core_pattern', 'r+')"),
    refused("sysfs", "os.listdir('/sys')"),
    refused("physical memory", "open('/dev/mem', 'rb')"),
    refused("kernel log", "open('/dev/kmsg', 'w')"),
    refused("disks", "open('/dev/sda', 'rb')"),
    refused("terminal", "open('/dev/tty', 'w').write('x')"),
    refused("new terminal", "os.openpty()"),
    refused("shared memory", f"open('/dev/shm/{MARK}', 'w')"),
    refused(
        "shared memory of Python", "from multiprocessing.shared_memory import SharedMemory as S; S(create=True, size=9)"
    ),
    refused("write to /", f"open('/{MARK}', 'w')"),
    refused("write to /usr", f"open('/usr/lib/{MARK}', 'w')"),
    refused("write to /etc", f"open('/etc/{MARK}', 'w')"),
    refused("write to /dev", f"open('/dev/{MARK}', 'w')"),
    refused("write beside the library", f"open(os.__file__ + '{MARK}', 'w')"),
    refused("write over the interpreter", "open(sys.executable, 'r+b')"),
    refused("change the library", "os.chmod(os.__file__, 0o644)"),
    # the machine's own devices, and root owns them inside, too
    refused("mode of a device", "os.chmod('/dev/null', os.stat('/dev/null').st_mode & 0o777)"),
    refused(
        "mode of an open device", "os.fchmod(os.open('/dev/null', os.O_RDWR), os.stat('/dev/null').st_mode & 0o777)"
    ),
    refused("owner of a device", "os.chown('/dev/null', -1, -1)"),
    refused("time of a device", "os.utime('/dev/null')"),
    refused("device node", "os.mknod('/tmp/disk', 0o60666, os.makedev(8, 0))"),
    refused("give to root", "open('/tmp/x', 'w'); os.chown('/tmp/x', 0, 0)"),
    refused("fill /tmp", "with open('/tmp/a', 'wb') as f:\n    while True: f.write(bytes(1 << 20))"),
    refused(
        "fill /tmp with unlinked files",
        "kept = []\nwhile True:\n    kept.append(open('/tmp/a', 'wb')); os.remove('/tmp/a'); kept[-1].write(bytes(1 << 20))",
    ),
    refused("huge sparse file", "os.truncate(os.open('/tmp/a', os.O_CREAT | os.O_RDWR), 1 << 40)"),
    refused("too many open files", "kept = []\nwhile True: kept.append(os.pipe())"),
    refused("path without end", "while True:\n    os.mkdir('d' * 250); os.chdir('d' * 250); os.stat(os.getcwd())"),
]

SYSTEM_CALLS = [
    refused("setuid", "os.setuid(0)"),
    refused("setgid", "os.setgid(0)"),
    refused("setgroups", "os.setgroups([0])"),
    refused("chroot", "os.chroot('/tmp')"),
    refused("nice", "os.nice(-10)"),
    refused("real time", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))"),
    refused("memfd", "os.memfd_create('x')"),
    refused("clock", "time.clock_settime(time.CLOCK_REALTIME, time.time())"),
    refused("host name", "socket.sethostname('x')"),
    refused("more memory", "try: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nexcept ValueError: raise OSError"),
    refused("more time", "try: resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\nexcept ValueError: raise OSError"),
    refused("new system calls", "syscall(434, 1, 0); syscall(500)"),
    refused("watch on files", "syscall({'x86_64': 294, 'aarch64': 26}[os.uname().machine], 0)"),
    refused("io_uring", "syscall(425, 8, ctypes.create_string_buffer(256))"),
    refused("clone3", "syscall(435, ctypes.create_string_buffer(88), 88)"),
    refused("second numbering", "syscall(0x40000000 + 39)"),
    Hostile(
        "each denied call",
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "for name, number, wanted in {denied!r}:\n"
        "    ctypes.set_errno(0)\n"
        "    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != wanted: print('ESCAPED', name)\n",
        stdout="",
    ),
    stopped(
        "32-bit calls",
        "failed",
        """
        import ctypes, mmap
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20; int 0x80; ret
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
        print('ESCAPED')
    """,
    ),
]

SURROUNDINGS = [
    harmless(
        "environment",
        "import os\nprint(sorted(set(os.environ) - {'LD_LIBRARY_PATH', 'LC_CTYPE'}))",
        "['HOME', 'LANG', 'MALLOC_ARENA_MAX', 'PWD', 'PYTHONHASHSEED']",
    ),
    harmless("who one is", "import os\nprint(os.getuid(), os.getgid(), os.uname().nodename)", "65534 65534 sandbox"),
    harmless(
        "what is there",
        "import os\nprint(os.listdir('/tmp'), os.listdir('/etc'), sorted(os.listdir('/dev')))",
        "[] ['ld.so.cache'] ['null', 'random', 'urandom', 'zero']",
    ),
    harmless(
        "open files",
        """
        import os
        for fd in range(3, 64):
            try: os.fstat(fd)
            except OSError: continue
            print('open', fd)
    """,
        "",
    ),
    harmless(
        "capabilities",
        """
        import ctypes
        libc = ctypes.CDLL(None)
        print([n for n in range(41) if libc.prctl(47, 1, n, 0, 0)], libc.prctl(39, 0, 0, 0, 0))
    """,
        "[] 1",
    ),
    harmless(
        "packages",
        "from importlib.util import find_spec as f\nprint([n for n in ('torch', 'numpy', 'verl_core', 'rlx') if f(n)])",
        "[]",
    ),
    harmless(
        "arguments and frames",
        "import sys\nprint(sys.argv, sys._getframe(0).f_back.f_code.co_filename)",
        "['main.py'] <string>",
    ),
    harmless("its /tmp is its own", f"open('/tmp/{MARK}', 'w').write('x')\nprint(open('/tmp/{MARK}').read())", "x"),
]

ESCAPES = PROCESSES + NETWORK + FILES + SYSTEM_CALLS + SURROUNDINGS
