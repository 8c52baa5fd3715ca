"""Scores answers by rules in processes of their own, each score under hard limits of time and memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Self

from verl_core.config.errors import UserError
from verl_core.config.reward_parts import TASK
from verl_core.config.schema import RewardConfig
from verl_core.config.schema_sandbox import SandboxConfig
from verl_core.rewards.dispatcher import Dispatcher
from verl_core.rewards.registry import Part, Setup, check_signature, check_values, default_scorer
from verl_core.rewards.verdict import ScoreRequest, Verdict

__all__ = ["ScoreRequest", "ScorerPool", "Verdict"]


class ScorerPool:
    """`cfg.num_workers` processes that run `parts` for each answer. The part `task` is `scorer` when given (any
    callable: function, closure, partial, object; it travels by cloudpickle), else the user's file, else the built-in
    rule of the row's data source.

    The limits `cfg.timeout_s`, `cpu_s` and `memory_mb` hold for every single score and stop busy loops; a rule that
    raises, hangs, dies or returns no number costs that score (0, with `Verdict.error`), never another or the run.
    Raises UserError when the rule cannot be loaded or does not take the arguments.
    """

    def __init__(
        self, cfg: RewardConfig, scorer: Callable[..., Any] | None = None, parts: Sequence[Part] | None = None
    ):
        """`parts`: the task alone, with reward.reward_kwargs, by default."""
        self._setup = Setup(
            parts=tuple(parts or [Part(TASK, cfg.reward_kwargs)]),
            path=cfg.custom_reward_function.path,
            name=cfg.custom_reward_function.name,
            pickled=None if scorer is None else _pickled(scorer),
            sys_path=tuple(sys.path),
            cpu_s=cfg.cpu_s,
            memory_mb=cfg.memory_mb,
            sandbox=_share_of_sandbox(cfg),
        )
        self._checked: set[str] = set()
        self._dispatcher = Dispatcher(self._setup, cfg.num_workers, cfg.timeout_s, cfg.max_queue)

    def check(self, data_sources: Iterable[str]) -> None:
        """Raises UserError when a data source has no rule, a rule does not take its arguments, or a library that it
        needs is missing. The rules are loaded then, before there is an answer that would wait for them."""
        new = sorted(set(data_sources) - self._checked)
        self._check(new)
        if new:
            self._dispatcher.load(new).result()

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Verdict]:
        """A verdict of the first part for each request, in order. From any thread and event loop. Raises UserError as
        `check` does, RunError when the pool is closed meanwhile."""
        return [verdicts[0] for verdicts in await self.score_parts(requests)]

    async def score_parts(self, requests: Sequence[ScoreRequest]) -> list[list[Verdict]]:
        """The same with the verdicts of all parts, in the parts' order: one trip for each answer."""
        self._check({r.data_source for r in requests} - self._checked)
        return await asyncio.wrap_future(self._dispatcher.submit(requests))

    async def room(self) -> None:
        """Returns when fewer than reward.max_queue answers wait for a process."""
        await asyncio.wrap_future(self._dispatcher.room())

    def close(self) -> None:
        """Kills the processes, whatever the rules are doing. May be called twice."""
        self._dispatcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self, data_sources: Iterable[str]) -> None:
        for source in data_sources:
            for part in self._setup.parts:
                if part.name != TASK or not self._setup.own:  # the user's own is checked where it is loaded
                    name = source if part.name == TASK else part.name
                    check_signature(default_scorer(name), part.keywords, f"the reward of {name}")
                    check_values(default_scorer(name), part.keywords, f"the reward of {name}")
            self._checked.add(source)


def _share_of_sandbox(cfg: RewardConfig) -> SandboxConfig:
    """What one scorer process may ask of the sandbox."""
    return replace(
        cfg.sandbox,
        timeout_s=cfg.sandbox.timeout_s or 0.8 * cfg.timeout_s,
        max_concurrent=max(1, cfg.sandbox.max_concurrent // cfg.num_workers),
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
