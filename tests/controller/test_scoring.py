"""What a step says of its answers: failed scores, timeouts and NaN are counted, each as what it is (cases O9, R2)."""

import pytest

from verl_core.batch import Batch, Segment, Trajectory, collate
from verl_core.config.errors import RunError
from verl_core.controller.trainer import scoring


def batch(*answers: dict) -> Batch:
    """One answer a dict: its meta beside `score_error`, and its reward parts."""
    rows = [
        Trajectory(
            [1, 2], [0, 1], [0.0, -0.5], [-1, 0], [Segment("prompt", 0, 1), Segment("response", 1, 2)], "p", k,
            reward_parts=answer.pop("parts", {}), meta={"score_error": None, **answer},
        )
        for k, answer in enumerate(answers)
    ]  # fmt: skip
    return collate([rows])


def test_only_what_ran_out_of_time_is_a_timeout():
    errors = ["timeout: no score within 1 s", "RuntimeError: no such key", "TimeoutError: the rule's own", None]
    metrics = scoring(batch(*({"score_error": e} for e in errors)), step=3)
    assert (metrics["reward/failed"], metrics["reward/timeouts"]) == (3, 1)


def test_answers_that_nan_cut_short_are_counted():
    assert scoring(batch({"nan": 1}, {}, {"nan": 1}), step=1)["response/nan"] == 2


def test_a_part_is_averaged_over_the_answers_that_have_it():
    metrics = scoring(batch({"parts": {"format": 1.0}}, {}, {"parts": {"format": 0.0}}), step=1)
    assert metrics["reward/format/mean"] == 0.5


def test_a_scorer_that_fails_on_the_whole_first_batch_ends_the_run_and_later_does_not():
    broken = [{"score_error": "ValueError: gold"}] * 2
    with pytest.raises(RunError, match="all 2 answers of the first batch: ValueError: gold"):
        scoring(batch(*(dict(b) for b in broken)), step=1)
    assert scoring(batch(*(dict(b) for b in broken)), step=2)["reward/failed"] == 2
