"""Scoring overlaps with generation: each answer is scored when it is there, and sources wait for the scorers."""

import asyncio

from verl_core.batch import Trajectory
from verl_core.controller.sources import GroupMaker
from verl_core.data.dataset import PromptRow
from verl_core.rewards.verdict import Verdict
from verl_core.rollout.protocol import Sampling


class Tokenizer:
    def batch_decode(self, ids, skip_special_tokens):
        return ["".join(map(chr, one)) for one in ids]


class Scorers:
    """Tells in which order answers came; full until `room_is_there` is set."""

    def __init__(self):
        self.seen, self.room_is_there = [], asyncio.Event()

    async def room(self):
        await self.room_is_there.wait()

    async def score(self, requests):
        self.seen += [request.solution for request in requests]
        return [Verdict(float(len(self.seen)), failures={"task": None}) for _ in requests]


class Loop:
    """Sample 0 ends last, and only once all others have been scored."""

    def __init__(self, scorers):
        self.scorers, self.started = scorers, 0

    async def run(self, task, generate):
        self.started += 1
        if task.sample == 0:
            while len(self.scorers.seen) < 3:
                await asyncio.sleep(0)
        ids = [ord("a") + task.sample]
        return [Trajectory(ids, [1], [0.0], [0], [], task.group, task.sample, meta=dict(task.meta))]


def test_answers_are_scored_while_others_of_their_group_are_generated():  # case R17
    """The order of a group is that of its samples, whichever ended first."""

    async def make():
        scorers = Scorers()
        loop = Loop(scorers)
        maker = GroupMaker(loop, None, scorers, Tokenizer(), 0)
        row = PromptRow("0-1", 1, [], (1,), "any", "4", {}, "file")
        making = asyncio.create_task(maker.make(row, 4, Sampling(max_tokens=4), "rollout", 1))
        await asyncio.sleep(0.01)
        waited = loop.started == 0
        scorers.room_is_there.set()
        return waited, await making, scorers.seen

    waited, group, seen = asyncio.run(asyncio.wait_for(make(), 10))
    assert waited, "generation began although the scorers had no room"
    assert sorted(seen[:3]) == ["b", "c", "d"] and seen[3] == "a"
    assert [t.meta["answer"] for t in group] == ["a", "b", "c", "d"]
    assert group[0].reward == 4.0 and group[0].meta["failures"] == {"task": None}
