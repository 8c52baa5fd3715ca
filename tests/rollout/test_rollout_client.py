"""Many agent loops, few engine calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from rollout_models import FAMILY, build, engine_for, prompt

from verl_core.batch import Segment
from verl_core.config.errors import UserError
from verl_core.rollout.agent_loop import SingleTurn, Task
from verl_core.rollout.client import RolloutClient
from verl_core.rollout.protocol import Completion, Sampling, TokenRequest

ENGINE = engine_for(build(FAMILY["qwen2-tied"]), max_num_seqs=128)


def task(p: int, s: int, length: int = 6, **meta: object) -> Task:
    return Task(f"p{p}", s, prompt(p, length), Sampling(max_tokens=8), seed=100 * p + s, meta=meta)


def recorded() -> tuple[RolloutClient, list[list[str]]]:
    """A client of the real engine, and the request ids of each call it made."""
    calls: list[list[str]] = []

    async def call(requests: list[TokenRequest]) -> list[Completion]:
        calls.append([r.request_id for r in requests])
        return await asyncio.to_thread(ENGINE.generate, requests)

    return RolloutClient(call), calls


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


def test_128_loops_make_one_call_in_order():
    async def work() -> None:
        client, calls = recorded()
        tasks = [task(p, s) for p in range(16) for s in range(8)]
        done = await asyncio.gather(*(SingleTurn().run(t, client.generate) for t in tasks))
        assert calls == [[f"{t.group}/{t.sample}" for t in tasks]]
        direct = ENGINE.generate([TokenRequest("x", "x", tasks[77].ids, tasks[77].sampling, tasks[77].seed)])[0]
        assert done[77][0].response_ids == direct.ids

    run(work)


def test_a_trajectory_is_prompt_and_answer():
    async def work() -> None:
        client, _ = recorded()
        (t,) = await SingleTurn().run(task(3, 1, data_source="gsm8k"), client.generate)
        answer = len(t.ids) - 6
        assert tuple(t.ids[:6]) == prompt(3, 6) and answer > 0
        assert t.mask == [0] * 6 + [1] * answer
        assert t.versions == [-1] * 6 + [1] * answer
        assert t.logps[:6] == [0.0] * 6 and all(x < 0 for x in t.logps[6:])
        assert t.segments == [Segment("prompt", 0, 6), Segment("response", 6, 6 + answer)]
        assert (t.group, t.sample, t.finish) == ("p3", 1, "length" if answer == 8 else "stop")
        assert t.meta == {"data_source": "gsm8k"}

    run(work)


def test_requests_that_come_during_a_call_form_the_next():
    async def work() -> None:
        client, calls = recorded()
        first = asyncio.create_task(SingleTurn().run(task(0, 0), client.generate))
        while not calls:
            await asyncio.sleep(0)
        later = [asyncio.create_task(SingleTurn().run(task(1, s), client.generate)) for s in range(3)]
        await asyncio.gather(first, *later)
        assert calls == [["p0/0"], ["p1/0", "p1/1", "p1/2"]]
        await SingleTurn().run(task(2, 0), client.generate)  # and the client works on when it was idle
        assert calls[2:] == [["p2/0"]]

    run(work)


def test_loops_that_start_a_few_turns_apart_still_share_a_call():
    async def late(client: RolloutClient, s: int) -> None:
        for _ in range(s):
            await asyncio.sleep(0)
        await SingleTurn().run(task(0, s), client.generate)

    async def work() -> None:
        client, calls = recorded()
        await asyncio.gather(*(late(client, s) for s in range(5)))
        assert calls == [[f"p0/{s}" for s in range(5)]]

    run(work)


def test_an_error_reaches_every_waiter_of_its_call_and_no_other():
    async def work() -> None:
        client, _ = recorded()
        bad, good = task(0, 0, length=200), task(0, 1)
        results = await asyncio.gather(
            *(SingleTurn().run(t, client.generate) for t in (bad, good)), return_exceptions=True
        )
        assert all(isinstance(r, UserError) and "200 tokens" in r.message for r in results)
        assert (await SingleTurn().run(good, client.generate))[0].response_ids

    run(work)


def test_a_cancelled_call_leaves_nobody_waiting():
    async def work() -> None:
        started = asyncio.Event()

        async def call(requests: list[TokenRequest]) -> list[Completion]:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        client = RolloutClient(call)
        first = asyncio.create_task(SingleTurn().run(task(0, 0), client.generate))
        await started.wait()
        second = asyncio.create_task(SingleTurn().run(task(0, 1), client.generate))
        await asyncio.sleep(0)
        assert client._sender is not None
        client._sender.cancel()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results)

    run(work)


def test_a_waiter_that_gave_up_does_not_hold_the_others():
    async def work() -> None:
        client, calls = recorded()
        gone = asyncio.create_task(SingleTurn().run(task(0, 0), client.generate))
        kept = asyncio.create_task(SingleTurn().run(task(0, 1), client.generate))
        await asyncio.sleep(0)
        gone.cancel()
        assert (await kept)[0].response_ids
        assert calls == [["p0/1"]]
        with pytest.raises(asyncio.CancelledError):
            await gone

    run(work)
