"""A rank that fails while the others wait for it in a collective ends the call; nobody hangs."""

import asyncio
import os
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from controller_tiny import answers, tiny_config, tiny_model

from verl_core.algorithms.loss import Need, Totals
from verl_core.config.errors import RunError
from verl_core.controller.executors.base import placements
from verl_core.controller.executors.ray import RayExecutor
from verl_core.controller.roles import Role


class OutOfMemoryOnOne:
    """A loss for which the last rank has no room."""

    needs = frozenset({Need.LOGP})
    temperature = 1.0

    def __call__(self, out, batch, totals):
        if dist.get_rank() == dist.get_world_size() - 1:
            raise MemoryError("no room for 8 GiB")
        return out[Need.LOGP].sum(), {}


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 3], ids=["rows of their own", "split rows"])
def test_memory_that_runs_out_on_one_rank_ends_the_step(tmp_path, monkeypatch, together):
    here = str(Path(__file__).parent)  # the ranks import the loss
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    words = ["cluster.nproc=3", f"actor.ulysses_sequence_parallel_size={together}"]
    config, batch = tiny_config("smoke", *words), answers(6, 2)

    async def step() -> float:
        executor = RayExecutor()
        try:
            groups = await executor.start(config, placements(config), str(tiny_model(tmp_path)))
            role = Role("actor", groups["main"], together)
            start = time.perf_counter()
            with pytest.raises(RunError, match="out of memory"):
                await role.step(batch, OutOfMemoryOnOne(), Totals.of(batch))
            return time.perf_counter() - start
        finally:
            await executor.close()

    assert asyncio.run(step()) < 60
