"""What a step says of its answers: failed scores, timeouts and NaN are counted, each as what it is (cases O9, R2)."""

import pytest

from verl_core.batch import Segment, Trajectory
from verl_core.config.errors import RunError
from verl_core.controller.scoring import refuse_broken_scorer, scoring


def said(*answers: dict) -> list[Trajectory]:
    """One answer a dict: its meta beside `score_error`, and its reward parts."""
    return [
        Trajectory(
            [1, 2], [0, 1], [0.0, -0.5], [-1, 0], [Segment("prompt", 0, 1), Segment("response", 1, 2)], "p", k,
            reward_parts=answer.pop("parts", {}), meta={"score_error": None, **answer},
        )
        for k, answer in enumerate(answers)
    ]  # fmt: skip


def test_only_what_ran_out_of_time_is_a_timeout():
    errors = ["timeout: no score within 1 s", "RuntimeError: no such key", "TimeoutError: the rule's own", None]
    metrics = scoring(said(*({"score_error": e} for e in errors)))
    assert (metrics["reward/failed"], metrics["reward/timeouts"]) == (3, 1)


def test_answers_that_nan_cut_short_are_counted():
    assert scoring(said({"nan": 1}, {}, {"nan": 1}))["response/nan"] == 2


def test_a_part_is_averaged_over_the_answers_that_have_it():
    metrics = scoring(said({"parts": {"format": 1.0}}, {}, {"parts": {"format": 0.0}}))
    assert metrics["reward/format/mean"] == 0.5


def test_a_scorer_that_fails_on_all_answers_is_broken_and_one_that_fails_on_some_is_not():
    broken = {"score_error": "ValueError: gold"}
    with pytest.raises(RunError, match="all 2 answers of the first batch: ValueError: gold"):
        refuse_broken_scorer(said(broken, broken))
    refuse_broken_scorer(said(broken, {}))
    assert scoring(said(broken, broken))["reward/failed"] == 2
