"""Which ranks write traces of which steps, and under which names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_core.config.compose import resolve
from verl_core.config.errors import UserError
from verl_core.config.schema import TrainerConfig
from verl_core.controller.profiler import Profiler


class Noted:
    """Stands for a pool of two ranks."""

    size = 2

    def __init__(self) -> None:
        self.calls: list[tuple[str, list]] = []

    async def scatter(self, method: str, arguments: Sequence[tuple]) -> list[Any]:
        self.calls.append((method, [argument for (argument,) in arguments]))
        return [None] * self.size


def test_ranks_are_counted_through_all_pools(tmp_path: Path):
    pools = {"main": Noted(), "values": Noted()}
    profiler = Profiler(TrainerConfig(profile_steps=[2, 4], profile_ranks=[1, 2]), pools, tmp_path)

    async def steps() -> None:
        for step in (1, 2, 3):
            await profiler.begin(step)
            await profiler.end(step)

    asyncio.run(steps())
    names = [f"{tmp_path}/profile/step_2_rank_{rank}.json.gz" for rank in range(4)]
    assert pools["main"].calls == [("start_profile", [False, True]), ("stop_profile", names[:2])]
    assert pools["values"].calls == [("start_profile", [True, False]), ("stop_profile", names[2:])]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trainer.profile_steps=[0]"], r"trainer.profile_steps\[0\]=0 .* is not in \[1, 1e9\]"),
        (["trainer.profile_steps=[3]", "trainer.profile_ranks=[0,2]"], "there is no rank 2; the last one is 0"),
    ],
)
def test_steps_and_ranks_that_are_not_there_are_refused(words: list[str], said: str):
    with pytest.raises(UserError, match=said):
        resolve("smoke", words)


def test_ranks_without_steps_have_no_effect():
    (warning,) = resolve("smoke", ["trainer.profile_ranks=[0,5]"]).warnings
    assert "trainer.profile_ranks" in warning and "trainer.profile_steps=[3]" in warning
