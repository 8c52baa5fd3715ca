"""How a step comes to its groups: as many as are dispatched, or, with dynamic sampling, as many as have something to
teach."""

from __future__ import annotations

import logging
from collections.abc import Callable
from statistics import fmean

from verl_core.batch import Batch, Trajectory, collate
from verl_core.config.errors import RunError
from verl_core.config.schema import FilterGroupsConfig
from verl_core.controller.buffer import ReplayBuffer
from verl_core.controller.scoring import refuse_broken_scorer
from verl_core.controller.sources import Source

log = logging.getLogger(__name__)

TOLD_EVERY = 10  # batches generated for one step


class Collector:
    """Takes the groups of each step from the buffer.

    With `filter_groups.enable` (DAPO's dynamic sampling, arXiv 2503.14476, section 3.2) a group whose answers are all
    alike is dropped, and prompts are dispatched, a training batch at a time, until there are enough that differ. What
    is generated beyond that stays in the buffer for the next step, as its first groups; veRL throws it away.
    """

    def __init__(
        self, source: Source, buffer: ReplayBuffer, count: int, filters: FilterGroupsConfig, stop: Callable[[], bool]
    ):
        self.source, self.buffer, self.count, self.filters, self._stop = source, buffer, count, filters, stop

    async def collect(self, step: int, version: int) -> tuple[Batch, dict[str, float]] | None:
        """The batch of a step, and what was left out on the way; None when the run is to stop before there are enough
        groups, which then wait in the buffer. `version`: of the weights that generate now.

        With dynamic sampling the batch has stale_N, bool: tokens that older weights have sampled. Raises RunError when
        `filter_groups.max_num_gen_batches` were generated and there are still too few groups, and for a broken scorer,
        for which all answers would be alike for ever.
        """
        if not self.filters.enable:
            self.source.dispatch(step)
            groups = await self.buffer.take(self.count)
            self.source.loader.update(step, groups)
            return collate(groups), {}
        metrics = await self._enough(step)
        if len(self.buffer) < self.count:
            return None
        batch = collate(await self.buffer.take(self.count))
        batch.add(stale_N=batch["mask_N"] & (batch["version_N"] < version))
        metrics["filter_groups/surplus"] = float(len(self.buffer))
        metrics["filter_groups/stale_tokens"] = float(batch["stale_N"].sum())
        return batch, metrics

    async def _enough(self, step: int) -> dict[str, float]:
        """Generates until the buffer has `count` groups that differ, or the run is to stop."""
        generated, dropped, rewards = 0, 0, list[float]()
        while len(self.buffer) < self.count and not (generated and self._stop()):
            if generated and generated % TOLD_EVERY == 0:
                log.warning(
                    "step %d: %d batches generated, %d of %d groups differ in %s",
                    *(step, generated, len(self.buffer), self.count, self.filters.metric),
                )
            if generated == self.filters.max_num_gen_batches > 0:
                raise RunError(
                    f"step {step}: {generated} generated batches have {len(self.buffer)} groups whose answers differ "
                    f"in {self.filters.metric}, and {self.count} are needed",
                    "raise algorithm.filter_groups.max_num_gen_batches, or train on prompts that are neither always "
                    "nor never solved",
                )
            there = len(self.buffer)
            self.source.dispatch(step)
            generated += 1
            made = (await self.buffer.settled())[there:]
            if step == generated == 1:
                refuse_broken_scorer([t for slot in made for t in slot.group])
            self.source.loader.update(step, [slot.group for slot in made])
            for slot in made:
                rewards += [t.reward for t in slot.group]
                if not differs(slot.group, self.filters.metric):
                    self.buffer.drop(slot.row.uid)
                    dropped += 1
        return {
            "filter_groups/gen_batches": float(generated),
            "filter_groups/dropped": float(dropped),
            "filter_groups/score/mean": fmean(rewards) if rewards else 0.0,
        }


def differs(group: list[Trajectory], metric: str) -> bool:
    """Whether the group's answers are not all worth the same. "acc" is right or wrong where the scorer says so, else
    the reward."""
    accs = [t.meta.get("acc") for t in group]
    worth = [t.reward for t in group] if metric == "reward" or None in accs else accs
    return len(set(worth)) > 1
