# ruff: noqa: E501 (a program is easier to read where it is one line)
"""Programs that try to hold up or to flood whoever runs them, and what must be observed instead."""

from hostile_programs import Hostile, refused, stopped

HANGS = [
    stopped("sleeps", "timeout", "import time\ntime.sleep(1e6)"),
    stopped("loops", "timeout", "while True: pass"),
    stopped("loops in C", "timeout", "import re\nre.match('(a+)+$', 'a' * 60 + 'b')"),
    stopped("counts for ever", "timeout", "sum(iter(int, 1))"),
    stopped("endless integer", "timeout", "x = 3\nwhile True: x = x * x % (1 << 500000) + 3"),
    stopped(
        "loops in a thread",
        "timeout",
        "import threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()",
    ),
    stopped("waits for a lock", "timeout", "import threading\nthreading.Lock().acquire() and threading.Event().wait()"),
    stopped("waits for a signal", "timeout", "import signal\nsignal.pause()"),
    stopped("stops itself", "failed", "import os\nos.kill(os.getpid(), 19)", says="PermissionError"),
    stopped(
        "ignores signals",
        "timeout",
        """
        import signal
        for s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(s, signal.SIG_IGN)
        while True: pass
    """,
    ),
    stopped(
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
    stopped("closes what it prints to", "timeout", "import os\nos.closerange(0, 64)\nwhile True: pass"),
    stopped("opens a pipe that nobody writes to", "timeout", "import os\nos.mkfifo('/tmp/p')\nopen('/tmp/p')"),
    stopped("fills a pipe", "timeout", "import os\nr, w = os.pipe()\nwhile True: os.write(w, bytes(65536))"),
    stopped(
        "fills a socket pair", "timeout", "import socket\na, b = socket.socketpair()\nwhile True: a.send(bytes(65536))"
    ),
    stopped("catches its end", "timeout", "while True:\n    try: raise SystemExit\n    except BaseException: pass"),
    stopped("loops at the end", "timeout", "import atexit\n@atexit.register\ndef loop():\n    while True: pass"),
    stopped("loops when it is collected", "timeout", "class C:\n    def __del__(self):\n        while True: pass\nC()"),
    stopped("moves the clock", "timeout", "import time\ntime.monotonic = time.time = lambda: 0\nwhile True: pass"),
    stopped("waits for input", "failed", "input()", says="EOFError"),
    Hostile("does not read", "print('done')", stdout="done", stdin=bytes(10_000_000)),
    Hostile(
        "reads half", "import sys\nsys.stdin.buffer.read(5)\nprint('done')", stdout="done", stdin=bytes(10_000_000)
    ),
]

FLOODS = [
    stopped("prints for ever", "output", "while True: print('x' * 1000)"),
    stopped("a gigabyte at once", "output", "import os\nwhile True: os.write(1, bytes(1 << 20))"),
    stopped("to stderr", "output", "import sys\nwhile True: sys.stderr.write('x' * 1000)"),
    stopped("to both", "output", "import os\nwhile True: os.write(1, bytes(1000)), os.write(2, bytes(1000))"),
    stopped(
        "from a thread",
        "output",
        "import os, threading\ndef f():\n    while True: os.write(1, bytes(1 << 16))\nthreading.Thread(target=f).start()",
    ),
    stopped("memory, a list", "memory", "x = []\nwhile True: x.append(' ' * 1000000)"),
    stopped("memory, at once", "memory", "x = bytearray(1 << 40)"),
    stopped("memory, doubling", "memory", "x = 'x'\nwhile True: x += x"),
    stopped("memory, zeros from a device", "memory", "open('/dev/zero', 'rb').read()"),
    stopped("memory, a range", "memory", "list(range(10 ** 12))"),
    stopped("memory, a power", "memory", "1 << (1 << 40)"),
    refused("memory, mapped", "import mmap; mmap.mmap(-1, 1 << 40)"),
    stopped(
        "memory, again and again",
        "timeout",
        "while True:\n    try: x = [bytes(1 << 20)] * 10; x = bytes(1 << 40)\n    except MemoryError: pass",
    ),
    stopped("recursion", "failed", "def f(): return f()\nf()", says="RecursionError"),
    stopped(
        "recursion without limit",
        "failed",
        "import sys\nsys.setrecursionlimit(1 << 30)\nclass A:\n    def __getattr__(self, n): return repr(getattr(self, n))\n    __repr__ = lambda self: repr(self.x)\nrepr(A())",
    ),
    stopped("nested source", "failed", "exec('(' * 100000)"),
    stopped("crash", "failed", "import ctypes\nctypes.string_at(0)"),
    stopped("abort", "failed", "import os\nos.abort()"),
    stopped("kills itself", "failed", "import os\nos.kill(os.getpid(), 9)"),
    stopped("is no Python", "failed", "this is ( no program", says="SyntaxError"),
    stopped("zero byte", "failed", "x = 1\0", says="null bytes"),
    stopped("lone surrogate", "failed", "print('\\ud800'.encode())", says="surrogates not allowed"),
    stopped("says what bubblewrap says", "failed", "import sys\nprint('bwrap: no', file=sys.stderr)\nsys.exit(1)"),
    Hostile("zero bytes", "import sys\nsys.stdout.buffer.write(bytes(3))", stdout="\0\0\0"),
    Hostile("any bytes", "import sys\nsys.stdout.buffer.write(bytes([255, 254, 10]))", stdout="\ufffd\ufffd"),
    Hostile("right to left", "print('\\u202eabc\\x1b[2J')", stdout="\u202eabc\x1b[2J"),
]

LOADS = HANGS + FLOODS
