"""The top loop: one trainer for every algorithm and every mode.

A mode changes only when the buffer hands out groups and when weights are pushed; every call to a rank is awaited, so an
overlapping mode needs no other loop. Hot path: `train` here → `Flow` (flows/) → `TrainEngine.step` on each rank.
"""

from __future__ import annotations

from verl_core.algorithms.metrics import batch_metrics
from verl_core.controller.run import Run
from verl_core.controller.scoring import refuse_broken_scorer, scoring


async def train(run: Run) -> None:
    """Trains from where the run stands to its last step, or until it is asked to stop."""
    timer, progress, c = run.timer, run.progress, run.config
    if progress.step == 0 and c.trainer.val_before_train and run.validator:
        await run.log(await validate(run))
    timer.begin_step()
    while progress.step < run.total_steps and not run.stop_requested:
        step = progress.step + 1
        await run.profiler.begin(step)

        with timer.phase("gen"):
            collected = await run.collector.collect(step, progress.version)
            if collected is None:  # asked to stop before there were enough groups
                break
            batch, metrics = collected
            await run.rollout.sleep()
        if run.generates:
            run.keep_rollouts(batch, step)  # first of all: whatever fails below, the answers are there to look at
            if step == 1:
                refuse_broken_scorer(batch["trajectory_blob"])
            metrics |= scoring(batch["trajectory_blob"])

        batch = await run.flow.prepare(batch, timer)
        metrics |= run.flow.advantage(batch)
        metrics |= await run.flow.update(batch, step, timer)
        metrics |= batch_metrics(batch, scored=run.generates)

        with timer.phase("update_weights"):
            await run.rollout.push_weights(progress.version + 1)  # before the cache takes its memory again
            await run.rollout.wake()
        progress.step, progress.version = step, progress.version + 1
        await run.profiler.end(step)

        last = step == run.total_steps
        if run.validator and due(c.trainer.test_freq, step, last):
            metrics |= await validate(run)
        # Logged before it is saved: a run killed in between goes on from an older step and writes this line again.
        await run.log(metrics, batch)
        run.saver.check()
        if due(c.trainer.save_freq, step, last):
            await save(run, behind=c.trainer.async_save and not last)
    if run.stop_requested and run.saver.saved_step != progress.step:
        await save(run)
    with timer.phase("save_checkpoint"):
        await run.saver.finish()


async def save(run: Run, behind: bool = False) -> None:
    with run.timer.phase("save_checkpoint"):
        await run.saver.save(run.progress, run.logged, behind)


def due(every: int, step: int, last: bool) -> bool:
    """every > 0: each so many steps and after the last; -1: after the last; 0: never."""
    return every != 0 and (last or (every > 0 and step % every == 0))


async def validate(run: Run) -> dict[str, float]:
    assert run.validator is not None
    with run.timer.phase("testing"):
        metrics, _ = await run.validator.run()
        await run.rollout.trim()
    return metrics
