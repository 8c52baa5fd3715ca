"""The reward of an answer from its parts: rules in the scorer pool, models elsewhere, added up by their weights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, Self

from verl_core.config.reward_parts import MODEL_PARTS, TASK, RewardPart, reward_parts
from verl_core.config.schema import RewardConfig
from verl_core.rewards.pool import ScorerPool
from verl_core.rewards.registry import Part, check_values, default_scorer, user_file
from verl_core.rewards.verdict import ScoreRequest, Verdict


def check_named_rules(cfg: RewardConfig) -> None:
    """Raises UserError when a rule that `reward.scorers` names does not take the value of a keyword, or the user's file
    is not there. The keywords of `task` depend on the rows, and are checked with them."""
    if cfg.custom_reward_function.path is not None:
        user_file(cfg.custom_reward_function.path)
    for name, part in reward_parts(cfg).items():
        if name != TASK and name not in MODEL_PARTS:
            check_values(default_scorer(name), part.keywords, f"reward.scorers.{name}")


class Scored(Protocol):
    """A part that is no rule: a reward model, a judge."""

    def check(self, data_sources: Iterable[str]) -> None:
        """Raises UserError when rows of a data source cannot be scored."""
        ...

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Verdict]:
        """One verdict a request, in order."""
        ...

    def close(self) -> None: ...


class Scorers:
    """All parts of `reward.scorers`. `score` gives the one definition of the reward: what is trained on is what is
    logged. Rules of an answer share one trip to a scorer process, and models read it at the same time."""

    def __init__(self, cfg: RewardConfig, models: Mapping[str, Scored] | None = None):
        """Starts the pool where there is a rule. `models`: those that are there already; others are added by `attach`.

        Raises UserError when a rule cannot be loaded or does not take its arguments.
        """
        self._parts = reward_parts(cfg)
        self._alone = not cfg.scorers
        self._rules = [name for name in self._parts if name not in MODEL_PARTS]
        self._models = dict(models or {})
        rules = [Part(name, self._parts[name].keywords) for name in self._rules]
        self._pool = ScorerPool(cfg, parts=rules) if rules else None

    def attach(self, name: str, model: Scored) -> None:
        """Adds a part that could not be made before. It is closed with the others."""
        self._models[name] = model

    def check(self, data_sources: Iterable[str]) -> None:
        """Raises UserError when rows of a data source cannot be scored."""
        sources = set(data_sources)
        for part in (self._pool, *self._models.values()):
            if part is not None:
                part.check(sources)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Verdict]:
        """One verdict a request, in order. Raises RunError when closed meanwhile."""
        models = [name for name in self._parts if name in MODEL_PARTS]
        rules, scored = await asyncio.gather(
            self._by_rules(requests), asyncio.gather(*(self._models[name].score(requests) for name in models))
        )
        if self._alone:
            return [verdicts[0] for verdicts in rules]
        verdicts = [dict(zip(self._rules, own, strict=True)) for own in rules]
        for name, column in zip(models, scored, strict=True):
            for own, verdict in zip(verdicts, column, strict=True):
                own[name] = verdict
        return [composed(self._parts, own) for own in verdicts]

    async def _by_rules(self, requests: Sequence[ScoreRequest]) -> list[list[Verdict]]:
        return await self._pool.score_parts(requests) if self._pool else [[] for _ in requests]

    async def room(self) -> None:
        """Returns when fewer than reward.max_queue answers wait for a scorer process."""
        if self._pool:
            await self._pool.room()

    def close(self) -> None:
        """May be called twice."""
        for part in (self._pool, *self._models.values()):
            if part is not None:
                part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def composed(parts: Mapping[str, RewardPart], verdicts: Mapping[str, Verdict]) -> Verdict:
    """The verdict on an answer: reward = sum of weight times score, where a part that failed has 0.

    Its parts are the scores by name; a further number of a rule is NAME/NUMBER, of the task just NUMBER, as without
    composition. acc, pred and reason are the task's where it gives an acc, else those of the first part that does. The
    answer counts as not scored when all parts that have a weight failed.
    """
    failures = {name: verdicts[name].error for name in parts}
    counted = [name for name, part in parts.items() if part.weight]
    numbers = {
        number if name == TASK else f"{name}/{number}": value
        for name in parts
        for number, value in verdicts[name].parts.items()
    }
    order = sorted(parts, key=lambda name: name != TASK)
    told = next((verdicts[name] for name in order if verdicts[name].acc is not None), verdicts[order[0]])
    return Verdict(
        reward=sum(part.weight * verdicts[name].reward for name, part in parts.items()),
        parts=numbers | {name: verdicts[name].reward for name in parts},
        acc=told.acc,
        pred=told.pred,
        reason=told.reason,
        error="; ".join(f"{name}: {failures[name]}" for name in counted) if all(map(failures.get, counted)) else None,
        failures=failures,
    )
