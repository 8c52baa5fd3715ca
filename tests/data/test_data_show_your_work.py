from collections import Counter

import pytest

from verl_core.config.errors import UserError
from verl_core.data import show_your_work as task
from verl_core.data.builtin import builtin_demonstrations, builtin_rows


def test_there_are_1899_problems_and_no_negative_value_in_any():
    every = task.problems()
    assert len(every) == len(set(every)) == 1899
    assert all(p.middle >= 0 and 0 <= p.gold <= task.LARGEST_VALUE for p in every)


def test_worked_answer_of_a_problem_by_hand():
    problem = task.Problem("+-", 7, 5, 3)
    assert (problem.middle, problem.gold) == (12, 9)
    assert problem.worked == "7+5=12\n12-3=9\n#### 9"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_held_out_problems_are_in_neither_the_training_rows_nor_the_demonstrations(seed):
    train, test = task.rows("train", seed), task.rows("test", seed)
    assert (len(train), len(test)) == (1699, 200)
    held_out = {r["extra_info"]["answer"] for r in test}  # the worked answer spells operations and digits out
    seen = {r["extra_info"]["answer"] for r in train}
    seen |= {answer for _, answer in task.demonstrations("worked", 4000, seed)}
    assert len(held_out) == 200 and not held_out & seen
    assert len(seen) == 1699


def test_rows_are_veRLs_and_their_gold_is_the_value_of_the_story():
    for row in task.rows("test", 0):
        assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
        assert row["data_source"] == "rlx/show-your-work"
        a, b, c = (int(ch) for ch in row["prompt"][0]["content"] if ch.isdigit())
        story = row["prompt"][0]["content"]
        first = b if "buys" in story.split("and")[0] else -b
        second = c if "finds" in story or "and buys" in story else -c
        assert row["reward_model"]["ground_truth"] == str(a + first + second)


def test_seed_decides_everything_and_another_seed_another_split():
    assert task.rows("train", 3) == task.rows("train", 3)
    assert task.demonstrations("habit", 50, 3) == task.demonstrations("habit", 50, 3)
    assert set(task.split_problems(0)[1]) != set(task.split_problems(1)[1])


def test_three_in_four_habit_demonstrations_are_guesses_and_guessing_hardly_ever_pays():
    pairs = task.demonstrations("habit", 4000, 0)
    guesses = [answer for _, answer in pairs if answer.startswith("####")]
    assert 0.72 < len(guesses) / len(pairs) < 0.78
    golds = Counter(r["reward_model"]["ground_truth"] for r in task.rows("test", 0))
    assert max(golds.values()) / 200 <= 0.12  # so a policy that always guesses the same number scores at most this


def test_corpus_is_1200_lines_of_training_text_without_markup():
    corpus = task.corpus(0)
    assert len(corpus) == 1200 and not any("<|" in line for line in corpus)


def test_unknown_builtin_names_are_refused_with_the_known_ones():
    with pytest.raises(UserError, match="builtin:nope") as error:
        builtin_rows("builtin:nope", "train", 0)
    assert "builtin:show-your-work" in error.value.hint
    with pytest.raises(UserError) as error:
        builtin_demonstrations("builtin:show-your-work/wrong", 1, 0)
    assert "builtin:show-your-work/habit" in error.value.hint
