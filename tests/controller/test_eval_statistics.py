"""What an evaluation reports: hand-worked tables, and intervals against a plain bootstrap with draws of its own."""

import math
import random
from statistics import fmean, stdev

import pytest

from verl_core.config.errors import UserError
from verl_core.controller.eval_report import print_differences, print_statistics
from verl_core.controller.eval_statistics import OVERALL, differences, interval, statistics
from verl_core.controller.scores import Answer

FOUR = [
    # question, data source, rewards
    ("0-0", "a", [1, 0]),
    ("0-1", "a", [0, 0]),
    ("0-2", "b", [1, 1]),
    ("0-3", "a", [1, 1]),
]


def groups(table: list[tuple[str, str, list[float]]]) -> list[list[Answer]]:
    return [
        [Answer(q, source, k, float(r), None, str(r), str(r), 4 + k, "stop") for k, r in enumerate(rewards)]
        for q, source, rewards in table
    ]


def test_measures_by_data_source_and_overall():
    table = statistics(groups(FOUR), 0)
    assert list(table) == ["a", "b", OVERALL]
    a, overall = table["a"], table[OVERALL]
    assert (a["questions"], a["answers"], a["n"]) == (3, 6, 2)
    assert a["mean"] == pytest.approx(0.5) and a["std"] == pytest.approx(0.5)
    assert a["best"] == {"1": pytest.approx(0.5), "2": pytest.approx(2 / 3)}
    assert a["pass"] == {"1": pytest.approx(0.5), "2": pytest.approx(2 / 3)}
    assert overall["mean"] == pytest.approx(5 / 8) and overall["questions"] == 4
    assert overall["length"] == 4.5
    assert table["b"]["std"] is None and table["b"]["ci95"] is None  # of one question nothing can be said


def test_failed_scores_and_truncated_answers_are_shares_of_their_own():
    ok = Answer("0-0", "a", 0, 1.0, 1.0, "1", "1", 2, "length")
    failed = Answer("0-0", "a", 1, 0.0, None, None, "?", 2, "stop", "timeout: 1 s")
    own = statistics([[ok, failed]], 0)["a"]
    assert (own["mean"], own["failed"], own["truncated"]) == (0.5, 0.5, 0.5)
    assert own["acc"] == 1.0  # of the answers that were judged
    assert own["pass"] == {"1": 0.5, "2": 1.0}


def test_graded_rewards_have_no_pass_at_k():
    assert statistics(groups([("0-0", "a", [0.3, 1]), ("0-1", "a", [0, 1])]), 0)["a"]["pass"] is None


def test_the_interval_is_that_of_a_plain_bootstrap():
    draw = random.Random(3)
    values = [draw.random() ** 3 for _ in range(60)]
    means = sorted(fmean(draw.choices(values, k=60)) for _ in range(4000))
    low, high = interval(values, 0)
    spread = stdev(values) / math.sqrt(60)
    assert low == pytest.approx(means[100], abs=0.12 * spread)
    assert high == pytest.approx(means[-100], abs=0.12 * spread)


def test_intervals_repeat_and_are_exact_where_nothing_varies():
    values = [math.sqrt(k) for k in range(40)]
    assert interval(values, 1) == interval(values, 1) != interval(values, 2)
    assert interval([0.25] * 9, 0) == [0.25, 0.25]
    assert interval([1.0], 0) is None


def test_large_sets_are_resampled_in_blocks():
    low, high = interval([float(k % 2) for k in range(20_000)], 0)
    assert (low, high) == (pytest.approx(0.5 - 1.96 * 0.5 / 141.4, abs=3e-4), pytest.approx(0.50693, abs=3e-4))


def test_differences_are_paired_by_question():
    second = groups([("0-3", "a", [0, 0]), ("0-0", "a", [1, 1]), ("0-2", "b", [1, 1]), ("0-9", "a", [1, 1])])
    table = differences(groups(FOUR), second, 0)
    assert table["a"] | {"ci95": None} == {
        "questions": 2, "mean": -0.25, "std": pytest.approx(stdev([-1, 0.5])), "ci95": None,
        "better": 1, "worse": 1, "same": 0,
    }  # fmt: skip
    assert table[OVERALL]["questions"] == 3 and table[OVERALL]["same"] == 1
    assert table["a"]["ci95"] == [-1.0, 0.5]


def test_no_question_in_common_is_said():
    with pytest.raises(UserError, match="no question"):
        differences(groups(FOUR[:1]), groups(FOUR[1:]), 0)


def test_the_tables_show_every_data_source_and_leave_out_what_nobody_has(capsys):
    print_statistics("model", statistics(groups(FOUR), 0))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [["model"], ["a", "b", "overall"], ["questions", "3", "1", "4"]]
    assert ["mean@2", "0.5000", "1.0000", "0.6250"] in lines and ["best@2", "0.6667", "1.0000", "0.7500"] in lines
    assert not any(line[0] == "accuracy" for line in lines)  # these rules give none
    print_differences("new", "old", differences(groups(FOUR[:2]), groups([("0-0", "a", [0, 0]), FOUR[1]]), 0))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["new", "minus", "old"] and ["difference", "of", "means", "-0.2500"] in lines
    assert ["better,", "worse,", "same", "0,", "1,", "1"] in lines
