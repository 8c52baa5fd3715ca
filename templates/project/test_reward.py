"""Tests of reward.py: run `python test_reward.py`, or pytest."""

from reward import compute_score


def score(answer, truth="72"):
    return compute_score("@@{project}", answer, truth)["score"]


def test_a_right_answer_earns_one():
    assert score("48 / 2 = 24\n48 + 24 = 72\n#### 72") == 1.0
    assert score("#### 1,072", "1072") == 1.0


def test_a_wrong_or_missing_answer_earns_nothing():
    assert score("#### 71") == 0.0
    assert score("the answer is 72") == 0.0
    assert score("") == 0.0


def test_the_last_answer_counts():
    assert score("#### 71\nno, that is wrong\n#### 72") == 1.0
    assert score("#### 72\n#### 71") == 0.0


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("passed", name)
