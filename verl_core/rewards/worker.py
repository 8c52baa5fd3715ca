"""Where rules run: `python -P -m verl_core.rewards.worker FD`, the template, and the scorer processes it forks.

The template loads the rules once and then only forks, so that a scorer that was killed is replaced within
milliseconds, whatever its rules import. It never sees an answer, unless its rules have left threads or open files,
which a fork would lack or share: then it becomes the one scorer it makes. Over the control socket FD the setup comes
in, and `Loaded` goes out; then orders come, one letter each: FORK with the scorer's socket, LOAD with data sources,
REAP with a scorer's pid.

A scorer gets lists of answers over its socket. It says READY when the rules of a list are loaded, then sends each score
as soon as it is known, so that the other side can time every single one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_core.config.errors import RlxError
from verl_core.config.user_code import describe
from verl_core.rewards.frames import receive, send
from verl_core.rewards.limits import CpuLimit, limit_memory
from verl_core.rewards.orders import FORK, LOAD, READY, REAP, Ended, Loaded, Started
from verl_core.rewards.output import Bounded, bound_output
from verl_core.rewards.registry import Scorer, Setup, rule_finder, warm_up
from verl_core.rewards.verdict import MEMORY, Verdict, failed, fields_of, verdict_of

type Find = Callable[[str], list[Scorer]]


def main() -> None:
    assert os.getsid(0) == os.getpid()  # all of the session ends with the pool
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    printed = bound_output()
    hang_up = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a rule that reads stdin finds nothing
    _end_with_the_pool(hang_up, control)
    os.close(hang_up)
    scorers: set[int] = set()
    try:
        setup: Setup = receive(control)
        files = _open_files()
        find = _load(setup, control)
        forkable = _forkable(files)
        send(control, Loaded(None, forkable))
        while True:
            order, handles, _, _ = socket.recv_fds(control, 1, 1)
            if order == FORK:
                scorers.add(_start_scorer(handles[0], forkable, control, setup, find, printed))
            elif order == LOAD:
                error, forkable = _error_of(find, receive(control)), _forkable(files)
                send(control, Loaded(error, forkable))
            elif order == REAP:
                pid = receive(control)
                scorers.remove(pid)
                send(control, Ended(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
            else:
                break
    except (EOFError, OSError):  # the pool has gone
        pass
    for pid in scorers:  # they end with the pool
        os.waitpid(pid, 0)
    os._exit(0)  # whatever threads a rule's import has left behind


def _load(setup: Setup, control: socket.socket) -> Find:
    sys.path[:] = list(setup.sys_path)
    try:
        find = rule_finder(setup)
    except RlxError as e:
        send(control, Loaded(e))
        raise EOFError from e
    return find


def _error_of(find: Find, data_sources: list[str]) -> Exception | None:
    """Loads the rules of these data sources; says what is wrong with them."""
    try:
        for source in data_sources:
            for rule in find(source):
                warm_up(rule)
    except Exception as e:
        return e if isinstance(e, RlxError) else RuntimeError(describe(e))
    return None


def _open_files() -> set[str]:
    return {file.name for file in Path("/proc/self/fd").iterdir()}


def _forkable(files: set[str]) -> bool:
    """The listing itself is one open file, the same before and after."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    return threads == 1 and _open_files() <= files


def _start_scorer(handle: int, fork: bool, control: socket.socket, setup: Setup, find: Find, printed: Bounded) -> int:
    """Forks a scorer and returns its pid; or becomes it, and does not return."""
    if fork:
        gc.freeze()  # what is loaded stays shared between the processes
        if pid := os.fork():
            os.close(handle)
            return pid
        os.setpgid(0, 0)  # so that killing it takes along what a rule has started; no session: Linux would give it a
        # share of the processor for itself, whatever its priority
        control.close()
    sock = socket.socket(fileno=handle)
    os.set_inheritable(handle, False)
    try:
        send(sock, Started(os.getpid()))
        _serve(sock, setup, find, printed)
    except (EOFError, OSError):  # the pool has gone
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # whatever threads the rule has left behind


def _end_with_the_pool(hang_up: int, control: socket.socket) -> None:
    """Ends this session, which is the template, its scorers and what they started, when the pool's end of the pipe
    `hang_up` is closed, which a kill does too.

    A process of its own watches: a rule in C code (a regular expression that backtracks for ever) lets no thread run.
    """
    if os.fork() == 0:
        os.setpgid(0, 0)  # it outlives the template's group
        control.close()  # else the pool would not notice that the template has died
        watched = select.poll()
        watched.register(hang_up, 0)  # reports nothing but the end of the pipe
        watched.poll()
        killed: set[int] = set()
        while left := _session() - killed - {os.getpid()}:  # what was forked meanwhile is there the next time
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= left
        os._exit(0)


def _session() -> set[int]:
    """The processes of this session."""
    own, found = os.getsid(0), set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(folder.name)) == own:
                found.add(int(folder.name))
    return found


def _serve(sock: socket.socket, setup: Setup, find: Find, printed: Bounded) -> None:
    limit_memory(setup.memory_mb)
    cpu = CpuLimit(setup.cpu_s)
    while True:
        answers = receive(sock)
        for data_source in {answer[0] for _, answer in answers}:
            _error_of(find, [data_source])  # raised again below, for each answer
        send(sock, READY)
        for first, answer in answers:
            for k in range(first, len(setup.parts)):
                printed.reset()
                cpu.start()
                began, began_cpu = time.perf_counter(), time.process_time()
                verdict = _score(find, k, answer)
                elapsed, processor_s = time.perf_counter() - began, time.process_time() - began_cpu
                cpu.stop()
                send(sock, (elapsed, processor_s, *fields_of(verdict)))
                if verdict.error and verdict.error.startswith(MEMORY):
                    return  # what is left of a process that ran out of memory is not trusted


def _score(find: Find, part: int, answer: tuple[str, str, Any, dict[str, Any]]) -> Verdict:
    data_source, solution, ground_truth, extra_info = answer
    try:
        result = find(data_source)[part](
            data_source=data_source, solution_str=solution, ground_truth=ground_truth, extra_info=extra_info
        )
        return verdict_of(asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result)
    except MemoryError:
        return failed(f"{MEMORY} no more of it within reward.memory_mb")
    except (Exception, SystemExit, KeyboardInterrupt) as e:
        return failed(describe(e))


async def _awaited(result: Any) -> Any:
    return await result


if __name__ == "__main__":
    main()
