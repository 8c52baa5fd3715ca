"""Dynamic sampling: groups whose answers are alike are dropped, what is left over is the next step's."""

import asyncio
import json

import pytest
import torch

from tests.controller.test_buffer import row
from verl_core.batch import Segment, Trajectory
from verl_core.config.errors import RunError
from verl_core.config.schema_algorithm import FilterGroupsConfig
from verl_core.controller.buffer import ReplayBuffer
from verl_core.controller.collecting import Collector, differs


def answer(
    uid: str, sample: int, reward: float, version: int, acc: float | None = None, error: str | None = None
) -> Trajectory:
    ids, mask = [1, 2, 3], [0, 0, 1]
    logps, versions = [0.0, 0.0, -0.5], [-1, -1, version]
    segments = [Segment("response", 2, 3)]
    meta = {"acc": acc, "score_error": error}
    return Trajectory(ids, mask, logps, versions, segments, uid, sample, reward=reward, meta=meta)


class Given:
    """A source whose groups are written down: batches of rows of rewards, sampled by the weights of the step before."""

    error: str | None = None  # of the scorer, on every answer

    def __init__(self, buffer: ReplayBuffer, *batches: list[list[float]]):
        self.buffer, self.batches, self.taken = buffer, list(batches), 0
        self.loader, self.heard = self, list[tuple[int, str]]()

    def update(self, step: int, groups: list[list[Trajectory]]) -> None:
        """As the loader does, which tells the curricula."""
        self.heard += [(step, group[0].group) for group in groups]

    def dispatch(self, step: int) -> None:
        for rewards in self.batches.pop(0):
            uid = f"p{self.taken}"
            self.taken += 1
            slot = self.buffer.open(row(uid), step)
            self.buffer.put(
                slot.row.uid, [answer(uid, k, r, step - 1, error=self.error) for k, r in enumerate(rewards)]
            )


def collector(*batches: list[list[float]], stop=lambda: False, **filters) -> Collector:
    buffer = ReplayBuffer()
    config = FilterGroupsConfig(**{"enable": True, "metric": "reward", **filters})
    return Collector(Given(buffer, *batches), buffer, 2, config, stop)


def groups(batch) -> list[str]:
    return list(dict.fromkeys(t.group for t in batch["trajectory_blob"]))


ALIKE, MIXED = [1.0, 1.0], [0.0, 1.0]


def test_alike_groups_go_and_the_surplus_comes_first_in_the_next_step():
    one = collector([ALIKE, MIXED], [MIXED, MIXED], [MIXED, ALIKE])

    async def steps():
        return [await one.collect(step, version=step - 1) for step in (1, 2)]

    (first, said), (second, then) = asyncio.run(steps())
    assert groups(first) == ["p1", "p2"] and groups(second) == ["p3", "p4"]
    assert said == {
        "filter_groups/gen_batches": 2, "filter_groups/dropped": 1, "filter_groups/surplus": 1,
        "filter_groups/stale_tokens": 0, "filter_groups/score/mean": pytest.approx(5 / 8),
    }  # fmt: skip
    assert then["filter_groups/surplus"] == 0 and then["filter_groups/dropped"] == 1
    stale = second["stale_N"].nonzero()[:, 0].tolist()
    assert stale == [2, 5] and then["filter_groups/stale_tokens"] == 2  # the produced tokens of p3's two answers


def test_the_curriculum_hears_of_dropped_groups_too_and_of_each_once():
    one = collector([ALIKE, MIXED], [MIXED, MIXED], [MIXED, ALIKE])
    for step in (1, 2):
        asyncio.run(one.collect(step, version=step - 1))
    assert one.source.heard == [(1, "p0"), (1, "p1"), (1, "p2"), (1, "p3"), (2, "p4"), (2, "p5")]
    plain = collector([ALIKE, MIXED], enable=False)
    asyncio.run(plain.collect(1, version=0))
    assert plain.source.heard == [(1, "p0"), (1, "p1")]


def test_enough_left_over_means_nothing_is_generated():
    one = collector([MIXED] * 4)
    asyncio.run(one.collect(1, 0))
    batch, said = asyncio.run(one.collect(2, 1))
    assert groups(batch) == ["p2", "p3"] and said["filter_groups/gen_batches"] == 0
    assert torch.equal(batch["stale_N"], batch["mask_N"])


def test_the_surplus_survives_a_checkpoint():
    one = collector([MIXED] * 3)
    asyncio.run(one.collect(1, 0))
    other = collector([MIXED, ALIKE])
    assert other.buffer.load_state(json.loads(json.dumps(one.buffer.state()))) == []
    other.source.taken = 3
    batch, _ = asyncio.run(other.collect(2, 1))
    assert groups(batch) == ["p2", "p3"]


def test_a_limit_that_is_reached_ends_the_run_with_what_there_was():
    one = collector([ALIKE, ALIKE], [MIXED, ALIKE], max_num_gen_batches=2)
    with pytest.raises(RunError, match="2 generated batches have 1 groups whose answers differ in reward, and 2"):
        asyncio.run(one.collect(1, 0))


def test_a_run_that_is_to_stop_does_not_go_on_generating():
    one = collector([ALIKE, MIXED], stop=lambda: True)
    assert asyncio.run(one.collect(1, 0)) is None
    assert len(one.buffer) == 1


def test_a_broken_scorer_ends_the_run_and_does_not_look_like_prompts_that_teach_nothing():
    one = collector([[0.0, 0.0]] * 2)
    one.source.error = "KeyError: 'gold'"
    with pytest.raises(RunError, match="failed on all 4 answers of the first batch: KeyError: 'gold'"):
        asyncio.run(one.collect(1, 0))


def test_off_everything_is_taken_as_it_comes():
    one = collector([ALIKE, MIXED], enable=False)
    batch, said = asyncio.run(one.collect(1, 0))
    assert groups(batch) == ["p0", "p1"] and said == {} and "stale_N" not in batch


@pytest.mark.parametrize(
    "metric, accs, rewards, told",
    [
        ("acc", (1.0, 1.0), (1.0, 0.5), False),  # a length penalty does not make right answers differ
        ("acc", (1.0, 0.0), (0.5, 0.5), True),
        ("acc", (None, None), (0.0, 1.0), True),  # the scorer says no acc
        ("reward", (1.0, 1.0), (1.0, 0.5), True),
        ("reward", (1.0, 0.0), (0.5, 0.5), False),
    ],
)
def test_what_it_means_to_differ(metric, accs, rewards, told):
    group = [answer("p", k, r, 0, acc) for k, (acc, r) in enumerate(zip(accs, rewards, strict=True))]
    assert differs(group, metric) == told
