"""The scorer process: `python -P -m verl_core.rewards.worker FD`.

It talks over the socket FD: first the setup comes in and `None` or an exception goes out; then lists of requests come
in, and each request's verdict goes out as soon as it is known, so that the other side can time every single one.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import select
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from verl_core.config.errors import RlxError
from verl_core.config.user_code import describe
from verl_core.rewards.output import bound_output
from verl_core.rewards.registry import Scorer, Setup, rule_finder
from verl_core.rewards.verdict import ScoreRequest, Verdict, failed, verdict_of


def main() -> None:
    fd = int(sys.argv[1])
    _end_with_the_pool(fd)
    pipe = Connection(fd)
    printed = bound_output()
    try:
        score = _prepare(pipe)
        while score is not None:
            for request in pipe.recv():
                printed.reset()
                pipe.send(score(request))
    except (EOFError, OSError):  # the pool has gone
        pass
    os._exit(0)  # whatever threads the rule has left behind


def _prepare(pipe: Connection) -> Callable[[ScoreRequest], Verdict] | None:
    """Loads the rule and reports: None for success, or the error, which the pool raises."""
    setup: Setup = pipe.recv()
    sys.path[:] = list(setup.sys_path)
    try:
        find = rule_finder(setup)
    except RlxError as e:
        pipe.send(e)
        return None
    pipe.send(None)
    return lambda request: _score(find, setup.kwargs, request)


def _score(find: Callable[[str], Scorer], kwargs: dict[str, Any], request: ScoreRequest) -> Verdict:
    try:
        result = find(request.data_source)(
            data_source=request.data_source,
            solution_str=request.solution,
            ground_truth=request.ground_truth,
            extra_info=request.extra_info,
            **kwargs,
        )
        return verdict_of(asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result)
    except (Exception, SystemExit, KeyboardInterrupt) as e:
        return failed(describe(e))


async def _awaited(result: Any) -> Any:
    return await result


def _end_with_the_pool(fd: int) -> None:
    """Ends this process and all it started when the pool's end of our stdin is closed, which a kill does too.

    A process of its own watches: a rule in C code (a regular expression that backtracks for ever) lets no thread run.
    """
    if os.fork() == 0:
        os.close(fd)  # else the pool would not notice that the scorer has died
        hang_up = select.poll()
        hang_up.register(0, 0)  # reports nothing but the end of the pipe
        hang_up.poll()
        os.killpg(0, signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a rule that reads stdin finds nothing


if __name__ == "__main__":
    main()
