from fractions import Fraction

import numpy as np
import pytest
import torch

from verl_core.rewards.verdict import Verdict, WrongReturn, verdict_of


@pytest.mark.parametrize(
    "value", [1, 1.0, True, np.float32(1), np.int64(1), np.bool_(True), np.array(1.0), torch.tensor(1.0), Fraction(1)]
)
def test_every_kind_of_number_is_a_reward(value):  # case R16
    verdict = verdict_of(value)
    assert verdict == Verdict(reward=1.0) and type(verdict.reward) is float
    assert verdict_of({"score": value}) == verdict


def test_rewards_keep_their_scale_and_accuracy_is_the_tasks_own():  # case R14
    assert [verdict_of(r).reward for r in (0, 0.5, 2)] == [0.0, 0.5, 2.0]
    assert verdict_of(2).acc is None
    assert verdict_of({"score": 2, "acc": True}).acc == 1.0


def test_a_dict_gives_its_score_and_further_numbers():
    verdict = verdict_of(
        {
            "score": 0.5,
            "acc": False,
            "pred": 7,
            "reason": "wrong",
            "format": np.float32(1),
            "note": "dropped",
            "none": None,
        }
    )
    assert verdict == Verdict(reward=0.5, acc=0.0, pred="7", reason="wrong", parts={"format": 1.0})


def test_a_verdict_keeps_no_megabyte_of_an_answer():
    kept = verdict_of({"score": 1, "pred": "7" * 10**6, "reason": "x" * 1000})
    assert (kept.pred, kept.reason) == ("7" * 1000 + "...", "x" * 1000)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (np.float32("-inf"), "-inf"),
        (None, "None of type NoneType"),
        ("1.0", "'1.0' of type str"),
        ([1.0], "type list"),
        ((1.0, {}), "type tuple"),
        (np.ones(2), "type ndarray"),
        ({"reward": 1}, r"no 'score'; its keys are \['reward'\]"),
        ({"score": None}, "score is None"),
        ({"score": 1, "acc": "yes"}, "acc is 'yes'"),
        ({"score": 1, "extra": float("nan")}, "extra is nan"),
    ],
)
def test_anything_else_is_refused_by_name(value, said):  # case R16
    with pytest.raises(WrongReturn, match=said):
        verdict_of(value)
