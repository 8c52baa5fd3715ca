"""Agent loops: from a task, through an engine, to trajectories. Token ids travel; text is never tokenised again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from verl_core.batch import Segment, Trajectory
from verl_core.rollout.protocol import Completion, Sampling, TokenRequest

Generate = Callable[[TokenRequest], Awaitable[Completion]]


@dataclass(frozen=True)
class Task:
    """One sample to produce. The G samples of a prompt share `group` and `ids` and differ in `sample` and `seed`."""

    group: str
    sample: int
    ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    meta: dict[str, Any] = field(default_factory=dict)


class AgentLoop(Protocol):
    async def run(self, task: Task, generate: Generate) -> list[Trajectory]:
        """Works on the task, asking `generate` as often as it likes; each trajectory is one sequence to train on."""
        ...


class SingleTurn:
    """A prompt, one answer."""

    async def run(self, task: Task, generate: Generate) -> list[Trajectory]:
        request = TokenRequest(f"{task.group}/{task.sample}", task.group, task.ids, task.sampling, task.seed)
        return [single_turn_trajectory(task, await generate(request))]


def single_turn_trajectory(task: Task, completion: Completion) -> Trajectory:
    """The prompt and its completion as one sequence. What the engine noted (`extras`) joins the task's meta."""
    prompt, answer = len(task.ids), len(completion.ids)
    return Trajectory(
        ids=[*task.ids, *completion.ids],
        mask=[0] * prompt + [1] * answer,
        logps=[0.0] * prompt + completion.logps,
        versions=[-1] * prompt + completion.versions,
        segments=[Segment("prompt", 0, prompt), Segment("response", prompt, prompt + answer)],
        group=task.group,
        sample=task.sample,
        session=f"{task.group}/{task.sample}",
        finish=completion.finish,
        meta={**task.meta, **completion.extras},
    )
