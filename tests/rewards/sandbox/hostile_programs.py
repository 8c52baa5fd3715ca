# ruff: noqa: E501 (a program is easier to read where it is one line)
"""Programs that try to get out of the sandbox, or to hold up whoever runs them, and what must be observed instead.

Each asks for the right to do harm, and does none if it gets it: a sandbox that is broken must fail its tests, not the
machine.
"""

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


def _refused(name: str, body: str) -> Hostile:
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


def _stopped(name: str, status: str, program: str, says: str = "") -> Hostile:
    return Hostile(name, textwrap.dedent(program), status, says=says)


def _harmless(name: str, program: str, stdout: str) -> Hostile:
    """It does what it likes, and ends well, with this to tell."""
    return Hostile(name, textwrap.dedent(program), stdout=stdout)


PROCESSES = [
    _refused("fork", "os.fork()"),
    _refused("forkpty", "os.forkpty()"),
    _refused("subprocess", "subprocess.run([sys.executable, '-c', 'pass'])"),
    _refused("posix_spawn", "os.posix_spawn(sys.executable, [sys.executable], {})"),
    _refused("system", "if os.system('true') != 0: raise OSError"),
    _refused(
        "multiprocessing", "import multiprocessing as m; p = m.get_context('fork').Process(target=print); p.start()"
    ),
    _refused("process pool", "from concurrent.futures import ProcessPoolExecutor as P; P(1).submit(print).result()"),
    _refused("daemon", "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)"),
    _refused("shell", "os.execv('/bin/sh', ['sh'])"),
    _refused("other program", "os.execv('/usr/bin/env', ['env'])"),
    _refused(
        "program of its own",
        "open('/tmp/x', 'w').write('#!/bin/sh'); os.chmod('/tmp/x', 0o755); os.execv('/tmp/x', ['x'])",
    ),
    _refused("signal to a process", "os.kill(os.getpid(), 0)"),
    _refused("signal to a thread", "import signal, threading; signal.pthread_kill(threading.get_ident(), 0)"),
    _refused("signal to init", "os.kill(1, 0)"),
    _refused("signal to the parent", "os.kill(os.getppid(), 0)"),
    _refused("signal to everybody", "os.kill(-1, 0)"),
    _refused("signal to the session", "os.killpg(0, 0)"),
    _refused("pidfd of init", "os.pidfd_open(1)"),
    _refused("signal by way of a file", "import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, 1)"),
    _harmless("parent", "import os\nprint(os.getppid())", "1"),
    _stopped(
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
    _stopped(
        "thread bomb",
        "timeout",
        """
        import threading, time
        for _ in range(100000): threading.Thread(target=time.sleep, args=(60,)).start()
    """,
    ),
    _stopped(
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
    _refused("tcp", "socket.create_connection(('127.0.0.1', 22))"),
    _refused("udp", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))"),
    _refused("ipv6", "socket.socket(socket.AF_INET6)"),
    _refused("listening", "socket.create_server(('', 8000))"),
    _refused("unix socket", "socket.socket(socket.AF_UNIX).connect('/run/dbus/system_bus_socket')"),
    _refused("abstract unix socket", "socket.socket(socket.AF_UNIX).bind('\\0hostile')"),
    _refused("netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    _refused("packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    _refused("raw", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    _refused("vsock", "socket.socket(socket.AF_VSOCK)"),
    _refused("crypto of the kernel", "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)"),
    _refused("names", "socket.getaddrinfo('example.com', 80)"),
    _refused("http", "import urllib.request; urllib.request.urlopen('http://169.254.169.254/', timeout=1)"),
    _refused("asyncio", "import asyncio; asyncio.run(asyncio.open_connection('127.0.0.1', 80))"),
    _refused("network devices", "socket.if_nameindex()[1]"),
]

FILES = [
    _refused("passwords", "open('/etc/shadow').read()"),
    _refused("users", "open('/etc/passwd').read()"),
    _refused("root's folder", "os.listdir('/root')"),
    _refused("home folders", "os.listdir('/home')"),
    _refused("this project", "os.listdir({project!r})"),
    _refused("a file of the machine's /tmp", "open({canary!r}).read()"),
    _refused("through a symlink", "os.symlink({canary!r}, '/tmp/link'); open('/tmp/link').read()"),
    _refused("up and down", "open('/tmp/../../../..' + {canary!r}).read()"),
    _refused("symlink loop", "os.symlink('/tmp/a', '/tmp/b'); os.symlink('/tmp/b', '/tmp/a'); open('/tmp/a')"),
    _refused("hard link", "os.link(sys.executable, '/tmp/python')"),
    _refused("environment of init", "open('/proc/1/environ').read()"),
    _refused("memory through /proc", "open('/proc/self/mem', 'r+b')"),
    _refused("files through /proc", "os.listdir('/proc/self/fd')"),
    _refused("root through /proc", "os.listdir('/proc/1/root')"),
    _refused("settings of the kernel", "open('/proc/sys/kernel/core_pattern', 'r+')"),
    _refused("sysfs", "os.listdir('/sys')"),
    _refused("physical memory", "open('/dev/mem', 'rb')"),
    _refused("kernel log", "open('/dev/kmsg', 'w')"),
    _refused("disks", "open('/dev/sda', 'rb')"),
    _refused("terminal", "open('/dev/tty', 'w').write('x')"),
    _refused("new terminal", "os.openpty()"),
    _refused("shared memory", f"open('/dev/shm/{MARK}', 'w')"),
    _refused(
        "shared memory of Python", "from multiprocessing.shared_memory import SharedMemory as S; S(create=True, size=9)"
    ),
    _refused("write to /", f"open('/{MARK}', 'w')"),
    _refused("write to /usr", f"open('/usr/lib/{MARK}', 'w')"),
    _refused("write to /etc", f"open('/etc/{MARK}', 'w')"),
    _refused("write to /dev", f"open('/dev/{MARK}', 'w')"),
    _refused("write beside the library", f"open(os.__file__ + '{MARK}', 'w')"),
    _refused("write over the interpreter", "open(sys.executable, 'r+b')"),
    _refused("change the library", "os.chmod(os.__file__, 0o644)"),
    _refused("device node", "os.mknod('/tmp/disk', 0o60666, os.makedev(8, 0))"),
    _refused("give to root", "open('/tmp/x', 'w'); os.chown('/tmp/x', 0, 0)"),
    _refused("fill /tmp", "with open('/tmp/a', 'wb') as f:\n    while True: f.write(bytes(1 << 20))"),
    _refused(
        "fill /tmp with unlinked files",
        "kept = []\nwhile True:\n    kept.append(open('/tmp/a', 'wb')); os.remove('/tmp/a'); kept[-1].write(bytes(1 << 20))",
    ),
    _refused("huge sparse file", "os.truncate(os.open('/tmp/a', os.O_CREAT | os.O_RDWR), 1 << 40)"),
    _refused("too many open files", "kept = []\nwhile True: kept.append(os.pipe())"),
    _refused("path without end", "while True:\n    os.mkdir('d' * 250); os.chdir('d' * 250); os.stat(os.getcwd())"),
]

SYSTEM_CALLS = [
    _refused("setuid", "os.setuid(0)"),
    _refused("setgid", "os.setgid(0)"),
    _refused("setgroups", "os.setgroups([0])"),
    _refused("chroot", "os.chroot('/tmp')"),
    _refused("nice", "os.nice(-10)"),
    _refused("real time", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))"),
    _refused("memfd", "os.memfd_create('x')"),
    _refused("clock", "time.clock_settime(time.CLOCK_REALTIME, time.time())"),
    _refused("host name", "socket.sethostname('x')"),
    _refused("more memory", "try: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nexcept ValueError: raise OSError"),
    _refused("more time", "try: resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\nexcept ValueError: raise OSError"),
    _refused("new system calls", "syscall(434, 1, 0); syscall(500)"),
    _refused("io_uring", "syscall(425, 8, ctypes.create_string_buffer(256))"),
    _refused("clone3", "syscall(435, ctypes.create_string_buffer(88), 88)"),
    _refused("second numbering", "syscall(0x40000000 + 39)"),
    Hostile(
        "each denied call",
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "for name, number, wanted in {denied!r}:\n"
        "    ctypes.set_errno(0)\n"
        "    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != wanted: print('ESCAPED', name)\n",
        stdout="",
    ),
    _stopped(
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
    _harmless(
        "environment",
        "import os\nprint(sorted(set(os.environ) - {'LD_LIBRARY_PATH', 'LC_CTYPE'}))",
        "['HOME', 'LANG', 'MALLOC_ARENA_MAX', 'PWD', 'PYTHONHASHSEED']",
    ),
    _harmless("who one is", "import os\nprint(os.getuid(), os.getgid(), os.uname().nodename)", "65534 65534 sandbox"),
    _harmless(
        "what is there",
        "import os\nprint(os.listdir('/tmp'), os.listdir('/etc'), sorted(os.listdir('/dev')))",
        "[] ['ld.so.cache'] ['null', 'random', 'urandom', 'zero']",
    ),
    _harmless(
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
    _harmless(
        "capabilities",
        """
        import ctypes
        libc = ctypes.CDLL(None)
        print([n for n in range(41) if libc.prctl(47, 1, n, 0, 0)], libc.prctl(39, 0, 0, 0, 0))
    """,
        "[] 1",
    ),
    _harmless(
        "packages",
        "from importlib.util import find_spec as f\nprint([n for n in ('torch', 'numpy', 'verl_core', 'rlx') if f(n)])",
        "[]",
    ),
    _harmless(
        "arguments and frames",
        "import sys\nprint(sys.argv, sys._getframe(0).f_back.f_code.co_filename)",
        "['main.py'] <string>",
    ),
    _harmless("its /tmp is its own", f"open('/tmp/{MARK}', 'w').write('x')\nprint(open('/tmp/{MARK}').read())", "x"),
]

HANGS = [
    _stopped("sleeps", "timeout", "import time\ntime.sleep(1e6)"),
    _stopped("loops", "timeout", "while True: pass"),
    _stopped("loops in C", "timeout", "import re\nre.match('(a+)+$', 'a' * 60 + 'b')"),
    _stopped("counts for ever", "timeout", "sum(iter(int, 1))"),
    _stopped("endless integer", "timeout", "x = 3\nwhile True: x = x * x % (1 << 500000) + 3"),
    _stopped(
        "loops in a thread",
        "timeout",
        "import threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()",
    ),
    _stopped(
        "waits for a lock", "timeout", "import threading\nthreading.Lock().acquire() and threading.Event().wait()"
    ),
    _stopped("waits for a signal", "timeout", "import signal\nsignal.pause()"),
    _stopped("stops itself", "failed", "import os\nos.kill(os.getpid(), 19)", says="PermissionError"),
    _stopped(
        "ignores signals",
        "timeout",
        """
        import signal
        for s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(s, signal.SIG_IGN)
        while True: pass
    """,
    ),
    _stopped(
        "begins anew at every signal",
        "timeout",
        """
        import signal
        signal.signal(signal.SIGXCPU, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        signal.signal(signal.SIGALRM, lambda *_: None)
        while True:
            try: pass
            except BaseException: pass
    """,
    ),
    _stopped("closes what it prints to", "timeout", "import os\nos.closerange(0, 64)\nwhile True: pass"),
    _stopped("opens a pipe that nobody writes to", "timeout", "import os\nos.mkfifo('/tmp/p')\nopen('/tmp/p')"),
    _stopped("fills a pipe", "timeout", "import os\nr, w = os.pipe()\nwhile True: os.write(w, bytes(65536))"),
    _stopped(
        "fills a socket pair", "timeout", "import socket\na, b = socket.socketpair()\nwhile True: a.send(bytes(65536))"
    ),
    _stopped("catches its end", "timeout", "while True:\n    try: raise SystemExit\n    except BaseException: pass"),
    _stopped("loops at the end", "timeout", "import atexit\n@atexit.register\ndef loop():\n    while True: pass"),
    _stopped(
        "loops when it is collected", "timeout", "class C:\n    def __del__(self):\n        while True: pass\nC()"
    ),
    _stopped("moves the clock", "timeout", "import time\ntime.monotonic = time.time = lambda: 0\nwhile True: pass"),
    _stopped("waits for input", "failed", "input()", says="EOFError"),
    Hostile("does not read", "print('done')", stdout="done", stdin=bytes(10_000_000)),
    Hostile(
        "reads half", "import sys\nsys.stdin.buffer.read(5)\nprint('done')", stdout="done", stdin=bytes(10_000_000)
    ),
]

FLOODS = [
    _stopped("prints for ever", "output", "while True: print('x' * 1000)"),
    _stopped("a gigabyte at once", "output", "import os\nwhile True: os.write(1, bytes(1 << 20))"),
    _stopped("to stderr", "output", "import sys\nwhile True: sys.stderr.write('x' * 1000)"),
    _stopped("to both", "output", "import os\nwhile True: os.write(1, bytes(1000)), os.write(2, bytes(1000))"),
    _stopped(
        "from a thread",
        "output",
        "import os, threading\ndef f():\n    while True: os.write(1, bytes(1 << 16))\nthreading.Thread(target=f).start()",
    ),
    _stopped("memory, a list", "memory", "x = []\nwhile True: x.append(' ' * 1000000)"),
    _stopped("memory, at once", "memory", "x = bytearray(1 << 40)"),
    _stopped("memory, doubling", "memory", "x = 'x'\nwhile True: x += x"),
    _stopped("memory, zeros from a device", "memory", "open('/dev/zero', 'rb').read()"),
    _stopped("memory, a range", "memory", "list(range(10 ** 12))"),
    _stopped("memory, a power", "memory", "1 << (1 << 40)"),
    _refused("memory, mapped", "import mmap; mmap.mmap(-1, 1 << 40)"),
    _stopped(
        "memory, again and again",
        "timeout",
        "while True:\n    try: x = [bytes(1 << 20)] * 10; x = bytes(1 << 40)\n    except MemoryError: pass",
    ),
    _stopped("recursion", "failed", "def f(): return f()\nf()", says="RecursionError"),
    _stopped(
        "recursion without limit",
        "failed",
        "import sys\nsys.setrecursionlimit(1 << 30)\nclass A:\n    def __getattr__(self, n): return repr(getattr(self, n))\n    __repr__ = lambda self: repr(self.x)\nrepr(A())",
    ),
    _stopped("nested source", "failed", "exec('(' * 100000)"),
    _stopped("crash", "failed", "import ctypes\nctypes.string_at(0)"),
    _stopped("abort", "failed", "import os\nos.abort()"),
    _stopped("kills itself", "failed", "import os\nos.kill(os.getpid(), 9)"),
    _stopped("is no Python", "failed", "this is ( no program", says="SyntaxError"),
    _stopped("zero byte", "failed", "x = 1\0", says="null bytes"),
    _stopped("lone surrogate", "failed", "print('\\ud800'.encode())", says="surrogates not allowed"),
    _stopped("says what bubblewrap says", "failed", "import sys\nprint('bwrap: no', file=sys.stderr)\nsys.exit(1)"),
    Hostile("zero bytes", "import sys\nsys.stdout.buffer.write(bytes(3))", stdout="\0\0\0"),
    Hostile("any bytes", "import sys\nsys.stdout.buffer.write(bytes([255, 254, 10]))", stdout="\ufffd\ufffd"),
    Hostile("right to left", "print('\\u202eabc\\x1b[2J')", stdout="\u202eabc\x1b[2J"),
]

ALL = PROCESSES + NETWORK + FILES + SYSTEM_CALLS + SURROUNDINGS + HANGS + FLOODS
