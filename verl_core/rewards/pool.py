"""Scores answers in processes of their own, each answer under a hard wall-clock limit."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Self

from verl_core.config.errors import UserError
from verl_core.config.schema import RewardConfig
from verl_core.rewards.process import ScorerProcess
from verl_core.rewards.registry import Setup, check_signature, default_scorer
from verl_core.rewards.verdict import ScoreRequest, Verdict

__all__ = ["ScoreRequest", "ScorerPool", "Verdict"]

LARGEST_CHUNK = 256  # answers handed to a process at a time


class ScorerPool:
    """`cfg.num_workers` processes that run one rule: `scorer` when given (any callable: function, closure, partial,
    object; it travels by cloudpickle), else the user's file, else the built-in rule of each row's data source.

    The limit `cfg.timeout_s` holds for every single answer and stops busy loops; a rule that raises, hangs, dies or
    returns no number costs that answer its reward (0, with `Verdict.error`), never another answer or the run.
    Raises UserError when the rule cannot be loaded or does not take the arguments.
    """

    def __init__(self, cfg: RewardConfig, scorer: Callable[..., Any] | None = None):
        self._builtin = scorer is None and cfg.custom_reward_function.path is None
        self._kwargs = dict(cfg.reward_kwargs)
        setup = _setup(cfg, scorer)
        self._processes = [ScorerProcess(setup, cfg.timeout_s) for _ in range(cfg.num_workers)]
        self._idle: SimpleQueue[ScorerProcess] = SimpleQueue()
        self._threads = ThreadPoolExecutor(cfg.num_workers, thread_name_prefix="scorer")
        try:
            list(self._threads.map(ScorerProcess.start, self._processes))
        except BaseException:
            self.close()
            raise
        for process in self._processes:
            self._idle.put(process)

    def check(self, data_sources: Iterable[str]) -> None:
        """Raises UserError when a data source has no rule, or its rule does not take reward.reward_kwargs."""
        if self._builtin:
            for source in sorted(set(data_sources)):
                check_signature(default_scorer(source), self._kwargs, f"the reward of {source}")

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Verdict]:
        """One verdict a request, in order. From any thread and event loop. Raises UserError as `check` does."""
        self.check(r.data_source for r in requests)
        workers = len(self._processes)
        pieces = 4 * workers if workers > 1 else 1  # more pieces than processes: slow answers even out
        size = min(LARGEST_CHUNK, math.ceil(len(requests) / pieces) or 1)
        chunks = [requests[i : i + size] for i in range(0, len(requests), size)]
        loop = asyncio.get_running_loop()
        scored = await asyncio.gather(*(loop.run_in_executor(self._threads, self._score_chunk, c) for c in chunks))
        return [verdict for chunk in scored for verdict in chunk]

    def close(self) -> None:
        """Kills the processes and ends the threads, whatever the rules are doing. May be called twice."""
        for process in self._processes:
            process.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _score_chunk(self, chunk: Sequence[ScoreRequest]) -> list[Verdict]:
        process = self._idle.get()
        try:
            return process.score(chunk)
        finally:
            self._idle.put(process)


def _setup(cfg: RewardConfig, scorer: Callable[..., Any] | None) -> Setup:
    custom = cfg.custom_reward_function
    return Setup(
        kwargs=dict(cfg.reward_kwargs),
        path=custom.path,
        name=custom.name,
        pickled=None if scorer is None else _pickled(scorer),
        sys_path=tuple(sys.path),
    )


def _pickled(scorer: Callable[..., Any]) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps(scorer)
    except Exception as e:
        raise UserError(
            f"the reward {scorer!r} cannot be sent to another process: {e}",
            hint="put it into a file and set reward.custom_reward_function.path",
        ) from e
