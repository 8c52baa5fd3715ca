"""How a process of rlx ends: foreseen failures as two lines and their exit code, others as one line and 70."""

import errno
import io
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from verl_core import interrupted
from verl_core.config import garbage
from verl_core.config.errors import MachineError, RlxError, RunError, UserError

INTERNAL, INTERRUPTED, PIPE_CLOSED = 70, 130, 141
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_BROKEN_DISK = (errno.EIO, errno.ESTALE)
EXHAUSTED = ("can't start new thread", "failed to map segment", "Cannot allocate memory")
"""How the interpreter and the loader word it when the process may have no more memory or threads."""


def run_job(main: Callable[[list[str]], int | None]) -> NoReturn:
    """Runs `main(arguments)` and leaves the process with its exit code (None is 0).

    RlxError: `error:` and `hint:` on stderr, its exit code. KeyboardInterrupt: 130. SIGTERM, unless the caller or
    `main` handles it: 143, after what is under way has been cleared up as on any other exit. A full disk: 5. No memory
    or threads left for the process, a disk that fails: 4. A file that may not be read or written: 1. Anything else: 70
    and one line that says where the traceback is; under -v the traceback itself. A reader of stdout that left: 141, as
    the shell has it. With --json the error is also a JSON object on stdout.
    """
    argv = sys.argv[1:]
    garbage.look_seldom()
    _open_standard_streams()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
    try:
        if signal.getsignal(signal.SIGINT) is interrupted:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _code_of(main, argv)
    except RlxError as error:
        code = fail(error, argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError as error:
        code = PIPE_CLOSED if _reader_left() else _unforeseen(error, argv)
    except Exception as error:
        told = _known(error)
        code = fail(told, argv) if told else _unforeseen(error, argv)
    _reader_left()  # else the interpreter's own last flush could fail
    garbage.look_no_more()
    sys.exit(code)


def _terminated(number: int, frame: object) -> NoReturn:
    """Temporary folders go and child processes end, which would stay behind by the signal's own default."""
    sys.exit(128 + number)


def _open_standard_streams() -> None:
    """Gives a process that was started with a closed stdin, stdout or stderr the null device in its place: else the
    next file it opens would take the number, and a job would print into it. What a terminal cannot show is escaped."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _code_of(main: Callable[[list[str]], int | None], argv: list[str]) -> int:
    """What main returns, or exits with as argparse and typer do. Everything printed has left the process then."""
    try:
        code: object = main(argv)
    except SystemExit as ended:
        if ended.code == 1 and _reader_left():  # typer makes 1 of a broken pipe
            return PIPE_CLOSED
        code = ended.code
    if sys.stdout is not None and not _reader_left():
        sys.stdout.flush()
    return code if isinstance(code, int) else int(code is not None)


def _known(error: Exception) -> RlxError | None:
    """What is told of a machine that has no room left, and of a file that it does not give; None for what nobody
    foresaw."""
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        place = error.filename or "what is printed"
        return RunError(f"no space left for {place}: {error.strerror}", "free some space, or write to another disk")
    if isinstance(error, OSError) and error.filename and error.errno in _REFUSED:
        return UserError(f"{error.filename}: {error.strerror}", "mend its permissions, or name another place")
    if isinstance(error, OSError) and error.filename and error.errno in _BROKEN_DISK:
        return MachineError(f"{error.filename}: {error.strerror}", "look at the disk, or at what it is mounted from")
    if isinstance(error, MemoryError) or any(text in str(error) for text in EXHAUSTED):
        text = " ".join(str(error).split())[:160] or "out of memory"
        return MachineError(f"no memory or threads left for this process: {text}", "look at `ulimit -a` and `free -g`")
    return None


def fail(error: RlxError, argv: list[str]) -> int:
    """Prints a foreseen failure; returns its exit code."""
    if _flag(argv, "-v", "--verbose"):
        traceback.print_exception(error)
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    _report_json(error.message, error.hint, error.exit_code, argv)
    return error.exit_code


def _unforeseen(error: Exception, argv: list[str]) -> int:
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if _flag(argv, "-v", "--verbose"):
        traceback.print_exception(error)
        hint = "this is a fault of rlx, not of yours: report it with the traceback above"
    elif (place := os.environ.get("RLX_TRACEBACK")) and _append_traceback(Path(place), error):
        hint = f"this is a fault of rlx, not of yours: report it with the traceback in {place}"
    else:
        hint = "this is a fault of rlx, not of yours: run again with -v and report it with the traceback"
    print(f"error: {what}\nhint: {hint}", file=sys.stderr)
    _report_json(what, hint, INTERNAL, argv)
    return INTERNAL


def _reader_left() -> bool:
    """Whether stdout is a pipe whose reader is gone (`rlx runs ls | head -1`); then nothing more is written to it."""
    if sys.stdout is None:  # closed by the caller: `>&-`
        return False
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        left = any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))
        if left:
            _drop_stdout()
    except (OSError, ValueError):  # stdout is closed, or was before
        return False
    return left


def _drop_stdout() -> None:
    """Whatever is printed from now on, or waits to be written, goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stdout.flush()


def _append_traceback(place: Path, error: Exception) -> bool:
    try:
        with place.open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return False
    return True


def _report_json(message: str, hint: str | None, code: int, argv: list[str]) -> None:
    if sys.stdout is None:
        return
    try:
        if _flag(argv, "--json"):
            print(json.dumps({"error": message, "hint": hint, "exit_code": code}))
        sys.stdout.flush()
    except OSError:  # stdout itself is what fails
        _drop_stdout()


def _flag(argv: list[str], *names: str) -> bool:
    """Whether a flag stands among the arguments, before any `--`."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    return any(name in own for name in names)
