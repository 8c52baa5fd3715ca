"""The buffer hands groups out in dispatch order, each once, and its state survives a restart (cases S7, S8)."""

import asyncio
import json
import random
from dataclasses import replace

import pytest

from verl_core.batch import Segment, Trajectory
from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.controller.buffer import ReplayBuffer, Slot
from verl_core.controller.sources import RolloutSource
from verl_core.data.dataset import PromptRow


def row(uid: str) -> PromptRow:
    return PromptRow(uid, 0, [{"role": "user", "content": uid}], (1, 2), "source", "gold", {}, "file")


def group(uid: str) -> list[Trajectory]:
    return [Trajectory([1, 2, 3], [0, 0, 1], [0.0, 0.0, -0.5], [-1, -1, 0], [Segment("response", 2, 3)], uid, 0)]


def names(groups: list[list[Trajectory]]) -> list[str]:
    return [g[0].group for g in groups]


def test_groups_leave_in_dispatch_order_whatever_order_they_finish_in():
    async def scenario() -> list[str]:
        buffer, uids = ReplayBuffer(), [f"p{i}" for i in range(50)]
        for uid in uids:
            buffer.open(row(uid), 1)

        async def finish() -> None:
            for uid in random.Random(0).sample(uids, len(uids)):
                await asyncio.sleep(0)
                buffer.put(uid, group(uid))

        producer = asyncio.create_task(finish())
        taken = [name for _ in range(5) for name in names(await buffer.take(10))]
        await producer
        assert len(buffer) == 0
        return taken

    assert asyncio.run(scenario()) == [f"p{i}" for i in range(50)]


def test_take_waits_for_the_oldest_even_when_younger_groups_are_ready():
    async def scenario() -> None:
        buffer = ReplayBuffer()
        for uid in ("slow", "fast"):
            buffer.open(row(uid), 1)
        buffer.put("fast", group("fast"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(buffer.take(1), 0.05)
        buffer.put("slow", group("slow"))
        assert names(await buffer.take(1)) == ["slow"]

    asyncio.run(scenario())


def test_a_failed_group_raises_where_it_is_taken_instead_of_hanging():
    async def scenario() -> None:
        buffer = ReplayBuffer()
        buffer.open(row("a"), 1)
        waiting = asyncio.create_task(buffer.take(1))
        await asyncio.sleep(0)
        buffer.fail("a", RuntimeError("engine died"))
        with pytest.raises(RuntimeError, match="engine died"):
            await asyncio.wait_for(waiting, 1)

    asyncio.run(scenario())


def test_asking_for_more_than_was_dispatched_is_an_error_not_a_hang():
    with pytest.raises(ValueError, match="2 groups asked for, 0 dispatched"):
        asyncio.run(ReplayBuffer().take(2))


def test_a_prompt_cannot_be_dispatched_twice():
    buffer = ReplayBuffer()
    buffer.open(row("a"), 1)
    with pytest.raises(ValueError, match="already"):
        buffer.open(row("a"), 1)


def test_state_survives_json_and_names_the_slots_to_start_again():
    async def scenario() -> None:
        buffer = ReplayBuffer()
        for uid in ("done", "pending"):
            buffer.open(row(uid), 3)
        buffer.put("done", group("done"))
        restored = ReplayBuffer()
        again = restored.load_state(json.loads(json.dumps(buffer.state())))
        assert again == [Slot(row("pending"), 3)]
        assert (await restored.take(1))[0] == group("done")

    asyncio.run(scenario())


def test_a_restored_slot_keeps_its_place_and_the_step_that_keys_its_draws():
    class Maker:  # answers with the step its draws would be keyed by
        async def make(self, row, n, sampling, purpose, step):
            return [replace(t, meta={"step": step}) for t in group(row.uid)]

    async def scenario() -> None:
        config = effective(resolve("smoke", []).config)
        buffer = ReplayBuffer()
        for uid, step in (("pending", 3), ("done", 4)):
            buffer.open(row(uid), step)
        buffer.put("done", group("done"))
        restored = ReplayBuffer()
        source = RolloutSource(config, None, Maker(), restored)
        for slot in restored.load_state(buffer.state()):
            source.start(slot)
        taken = await asyncio.wait_for(restored.take(2), 1)
        assert names(taken) == ["pending", "done"] and taken[0][0].meta == {"step": 3}

    asyncio.run(scenario())
