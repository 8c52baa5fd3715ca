"""What would make a plan fit: single changes and pairs, each planned anew, the cheapest first."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from verl_core.config.checks import check
from verl_core.config.effective import effective, get
from verl_core.config.schema import RlxConfig
from verl_core.planning.changes import Change, changes
from verl_core.planning.divisions import divisions
from verl_core.planning.estimate import estimate
from verl_core.planning.gpus import Gpu
from verl_core.planning.result import Advice, Plan
from verl_core.planning.shapes import ModelShape

WANTED = 3
RELIEF = 0.9  # of a phase's memory: what a change must bring it below to be worth trying


@dataclass(frozen=True)
class _Tried:
    change: Change
    plan: Plan


def advise(config: RlxConfig, shapes: Mapping[str, ModelShape], gpu: Gpu, plan: Plan) -> list[Advice]:
    """Up to three ways to a better verdict; none for a plan that fits. `config` is as asked for, nulls not filled in.

    What fits comes before what is tight; settings before more GPUs before another kind of training; then the least GPU
    time, then the fewest keys. Pairs are tried when single changes do not give three ways that fit.
    """
    if plan.verdict == "fits":
        return []
    singles = [tried for change in changes(config) if (tried := _try(config, shapes, gpu, change))]
    found = [tried for tried in singles if _is_better(tried.plan, plan)]
    fitting = [tried for tried in found if tried.plan.verdict == "fits"]
    if len(fitting) < WANTED:
        helpful = [
            tried.change for tried in singles if tried not in fitting and _pressure(tried.plan) < _pressure(plan)
        ]
        found += [tried for tried in _pairs(config, shapes, gpu, helpful) if _is_better(tried.plan, plan)]
    found.sort(key=lambda tried: _cost(tried, plan))
    return [_advice(tried, plan) for tried in _different(found)]


def relieve(config: RlxConfig, shapes: Mapping[str, ModelShape], gpu: Gpu, plan: Plan, phase: str) -> list[Advice]:
    """Up to three single changes that lower the memory of one phase (by its name in the plan) by a tenth or more, the
    cheapest first: for memory that ran out there although it fits by the plan. `peak` is that phase's."""
    before = _memory(plan, phase)
    if before is None:
        return []
    singles = [tried for change in changes(config) if (tried := _try(config, shapes, gpu, change))]
    found = [tried for tried in singles if (_memory(tried.plan, phase) or 0.0) <= RELIEF * before]
    found.sort(key=lambda tried: _cost(tried, plan))
    return [
        replace(_advice(tried, plan), phase=phase, peak=_memory(tried.plan, phase) or 0.0)
        for tried in _different(found)
    ]


def applied(config: RlxConfig, settings: Mapping[str, Any]) -> RlxConfig:
    """A copy with these keys set."""
    changed = copy.deepcopy(config)
    for key, value in settings.items():
        section, _, last = key.rpartition(".")
        if section.startswith("cluster.pools."):
            setattr(changed.cluster.pools[section.removeprefix("cluster.pools.")], last, value)
        else:
            setattr(get(changed, section), last, value)
    return changed


def _try(config: RlxConfig, shapes: Mapping[str, ModelShape], gpu: Gpu, change: Change) -> _Tried | None:
    """The plan with a change; None when it breaks a rule."""
    changed = applied(config, change.settings)
    if check(changed, {}, []).errors:
        return None
    e = effective(changed)
    return None if divisions(e, shapes) else _Tried(change, estimate(e, shapes, gpu))


def _pairs(
    config: RlxConfig, shapes: Mapping[str, ModelShape], gpu: Gpu, helpful: Iterable[Change]
) -> Iterator[_Tried]:
    for one, other in combinations(helpful, 2):
        if not one.settings.keys() & other.settings.keys():
            tried = _try(config, shapes, gpu, one | other)
            if tried:
                yield tried


def _is_better(new: Plan, old: Plan) -> bool:
    return new.verdict == "fits" or (new.verdict == "tight" and old.verdict == "does not fit")


def _different(found: Iterable[_Tried]) -> list[_Tried]:
    """The cheapest ones, without two that set the same keys and without one that has all settings of a cheaper one."""
    kept: list[_Tried] = []
    for tried in found:
        settings = tried.change.settings
        if len(kept) < WANTED and not any(
            settings.keys() == other.change.settings.keys() or other.change.settings.items() <= settings.items()
            for other in kept
        ):
            kept.append(tried)
    return kept


def _memory(plan: Plan, phase: str) -> float | None:
    """Bytes of a phase on the GPU that needs most; None where there is no such phase."""
    return max((found.memory.total for found in plan.phases if found.name == phase), default=None)


def _pressure(plan: Plan) -> tuple[bool, float]:
    return plan.tightest.pressure(plan.gpu.memory)


def _gpu_seconds(plan: Plan) -> float:
    return plan.step_seconds * plan.gpus


def _cost(tried: _Tried, old: Plan) -> tuple[bool, int, float, int]:
    slowdown = round(_gpu_seconds(tried.plan) / _gpu_seconds(old), 2)
    return tried.plan.verdict != "fits", tried.change.kind, slowdown, len(tried.change.settings)


def _advice(tried: _Tried, old: Plan) -> Advice:
    new = tried.plan
    return Advice(
        settings=tried.change.settings,
        verdict=new.verdict,
        peak=new.tightest.memory.total,
        phase=new.tightest.name,
        limit=new.tightest.limit,
        step_seconds=new.step_seconds,
        slowdown=_gpu_seconds(new) / _gpu_seconds(old),
    )
