"""Sources feed the buffer with groups. `RolloutSource` generates and scores them; `DatasetSource` (demonstrations,
preference pairs) reads them, and needs no engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Protocol

from verl_core.batch import Trajectory
from verl_core.config.effective import advantage_needs
from verl_core.config.schema import RlxConfig
from verl_core.controller.buffer import ReplayBuffer, Slot
from verl_core.controller.seeds import draw_seed
from verl_core.data.dataset import PromptRow
from verl_core.data.examples import ExampleDataset
from verl_core.data.loader import PromptLoader
from verl_core.rewards.compose import Scorers
from verl_core.rewards.length import length_terms
from verl_core.rewards.overlong import overlong_penalty
from verl_core.rewards.verdict import ScoreRequest, Verdict
from verl_core.rollout.agent_loop import AgentLoop, Generate, Task
from verl_core.rollout.protocol import Sampling


class GroupMaker:
    """Turns one prompt into its group of scored trajectories: generation, decoding, scoring."""

    def __init__(self, loop: AgentLoop, generate: Generate, scorers: Scorers, tokenizer, seed: int):
        self.loop, self.generate, self.scorers, self.tokenizer, self.seed = loop, generate, scorers, tokenizer, seed

    async def make(
        self, row: PromptRow, n: int, sampling: Sampling, purpose: str, step: int, first: int = 0
    ) -> list[Trajectory]:
        """n trajectories of the prompt, from `first` on. Draws are keyed by (seed, purpose, step, uid, sample)."""
        tasks = [
            Task(
                group=row.uid,
                sample=k,
                ids=row.ids,
                sampling=sampling,
                seed=draw_seed(self.seed, purpose, step, row.uid, k),
                meta={"data_source": row.data_source, "ground_truth": row.ground_truth},
            )
            for k in range(first, first + n)
        ]
        await self.scorers.room()  # before more is generated than can be scored
        sessions = await asyncio.gather(*(self._scored(task, row) for task in tasks))
        return [trajectory for session in sessions for trajectory in session]

    async def _scored(self, task: Task, row: PromptRow) -> list[Trajectory]:
        """The trajectories of one session, scored while others of the group are still being generated."""
        session = await self.loop.run(task, self.generate)
        await self._score(row, session)
        return session

    async def _score(self, row: PromptRow, group: Sequence[Trajectory]) -> None:
        texts = self.tokenizer.batch_decode([t.response_ids for t in group], skip_special_tokens=True)
        verdicts = await self.scorers.score(
            [ScoreRequest(row.data_source, text, row.ground_truth, row.extra_info, row.prompt) for text in texts]
        )
        for trajectory, text, verdict in zip(group, texts, verdicts, strict=True):
            trajectory.reward = verdict.reward
            trajectory.reward_parts = verdict.parts
            trajectory.meta |= {"answer": text, **_judgement(verdict)}


def _judgement(verdict: Verdict) -> dict:
    told = {"acc": verdict.acc, "pred": verdict.pred, "reason": verdict.reason, "score_error": verdict.error}
    return told | ({"failures": verdict.failures} if verdict.failures else {})


class Source(Protocol):
    """Feeds the buffer."""

    loader: PromptLoader

    def dispatch(self, step: int) -> None:
        """Starts one training batch; its groups arrive in the buffer."""
        ...

    def start(self, slot: Slot) -> None:
        """Starts making the group of one slot, again where a checkpoint has it pending."""
        ...

    async def close(self) -> None: ...


class DatasetSource:
    """Hands out the groups that a data set has."""

    def __init__(self, loader: PromptLoader, dataset: ExampleDataset, buffer: ReplayBuffer):
        self.loader, self.dataset, self.buffer = loader, dataset, buffer

    def dispatch(self, step: int) -> None:
        for row in self.loader.next():
            self.start(self.buffer.open(row, step))

    def start(self, slot: Slot) -> None:
        self.buffer.put(slot.row.uid, self.dataset.group(slot.row))

    async def close(self) -> None:
        """Nothing is under way."""


class RolloutSource:
    """Draws prompts from the loader, in order, and generates their groups."""

    def __init__(
        self,
        config: RlxConfig,
        loader: PromptLoader,
        maker: GroupMaker,
        buffer: ReplayBuffer,
        demonstrations: ExampleDataset | None = None,
    ):
        """`demonstrations`: of the same rows; each answer gets its prompt's as meta["demonstration"]."""
        self.loader, self.maker, self.buffer, self.demonstrations = loader, maker, buffer, demonstrations
        self.n = config.rollout.n
        self.sampling = train_sampling(config)
        self.overlong, self.shaping = config.reward.overlong_buffer, config.reward.length_shaping
        self.greedy = "greedy" in advantage_needs(config)
        self._running: set[asyncio.Task] = set()

    def dispatch(self, step: int) -> None:
        """Starts one training batch of prompts; their groups arrive in the buffer."""
        for row in self.loader.next():
            self.start(self.buffer.open(row, step))

    def start(self, slot: Slot) -> None:
        """Starts making the group of one slot. Its draws are keyed by the step it was dispatched in, so that a slot
        restored from a checkpoint gets the answers that it would have got."""
        task = asyncio.get_running_loop().create_task(self._fill(slot))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _fill(self, slot: Slot) -> None:
        uid = slot.row.uid
        try:
            made = [self.maker.make(slot.row, self.n, self.sampling, "rollout", slot.step)]
            if self.greedy:
                made.append(self.maker.make(slot.row, 1, _greedy(self.sampling), "greedy", slot.step, first=self.n))
            group, *baseline = await asyncio.gather(*made)
            if self.shaping.form is not None:
                for part in (group, *baseline):
                    self._shape_by_length(part)
            if self.overlong.enable:
                self._penalise_length([t for part in (group, *baseline) for t in part])
            if self.demonstrations is not None:
                (demonstration,) = self.demonstrations.group(slot.row)
                for t in group:
                    t.meta["demonstration"] = asdict(demonstration)
            for greedy in baseline:
                reward = fmean(t.reward for t in greedy)
                for t in group:
                    t.meta["greedy_reward"] = reward
            self.buffer.put(uid, group)
        except Exception as error:  # handed to whoever takes the group; a source never swallows one
            self.buffer.fail(uid, error)

    def _shape_by_length(self, group: Sequence[Trajectory]) -> None:
        """An answer that could not be scored is neither right nor wrong, and stays as it is."""
        scored = [t for t in group if not t.meta["score_error"]]
        right = [(t.reward if t.meta["acc"] is None else t.meta["acc"]) > 0 for t in scored]
        lengths = [len(t.response_ids) for t in scored]
        terms = iter(length_terms(lengths, right, self.sampling.max_tokens, self.shaping))
        for t in group:
            term = 0.0 if t.meta["score_error"] else next(terms)
            t.reward += term
            t.reward_parts = {**t.reward_parts, "length": term}

    def _penalise_length(self, group: Sequence[Trajectory]) -> None:
        for t in group:
            penalty = overlong_penalty(len(t.response_ids), self.sampling.max_tokens, self.overlong)
            t.reward += penalty
            t.reward_parts = {**t.reward_parts, "overlong": penalty}

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def _greedy(sampling: Sampling) -> Sampling:
    return replace(sampling, temperature=0.0, top_p=1.0, top_k=-1)


def train_sampling(config: RlxConfig) -> Sampling:
    r = config.rollout
    return Sampling(
        max_tokens=config.data.max_response_length,
        temperature=r.temperature,
        top_p=r.top_p,
        top_k=r.top_k,
        stop=tuple(r.stop),
        ignore_eos=r.ignore_eos,
    )


def val_sampling(config: RlxConfig) -> Sampling:
    r, v = config.rollout, config.rollout.val_kwargs
    return Sampling(
        max_tokens=config.data.max_response_length,
        temperature=v.temperature if v.do_sample else 0.0,
        top_p=v.top_p,
        top_k=v.top_k,
        stop=tuple(r.stop),
        ignore_eos=r.ignore_eos,
    )
