import time

import pytest

from verl_core.rewards import gsm8k, show_your_work
from verl_core.rewards.verdict import UnusableGold


def verdict(text, gold, **kwargs):
    return gsm8k.compute_score("openai/gsm8k", text, gold, **kwargs)


# The first rows of MARKED and UNMARKED are the cases of section 9, in its order.
MARKED = [
    ("#### 42.", "42", 1),
    ("####42", "42", 1),
    ("#### $42", "42", 1),
    ("#### \N{MINUS SIGN}42", "-42", 1),
    ("#### 1/2", "1", 0),
    ("#### 5-3", "5", 0),
    ("#### 18.0", "18", 1),
    ("#### 18", "18.00", 1),
    ("#### 1,000", "1000", 1),
    ("#### 1000", "1,000", 1),
    ("#### **42**", "42", 1),
    ("#### \\$42 dollars", "42", 1),
    ("#### -$42", "-42", 1),
    ("#### .5", "0.50", 1),
    ("#### 007", "7", 1),
    ("#### -0", "0", 1),
    ("####\n42", "42", 1),
    ("#### 42 apples", "42", 1),
    ("#### 42%", "42", 1),
    ("#### -42", "42", 0),
    ("#### 42", "-42", 0),
    ("#### 4.2", "42", 0),
    ("#### 10-3=7", "10", 0),
    ("#### 5 + 3", "5", 0),
    ("#### 3,4", "3", 0),
    ("#### 3,4", "34", 0),
    ("#### 5:30", "5", 0),
    ("#### 1e3", "1", 0),
    ("#### 1.2.3", "1.2", 0),
    ("#### 2\N{MULTIPLICATION SIGN}3", "2", 0),
    ("#### 41\nwait\n#### 42", "42", 1),
    ("#### 42\nwait\n#### 41", "42", 0),
    ("#### Step 1\n5+37\n#### 42", "42", 1),
    ("#### 42\n#### Remark: 7 is odd", "42", 1),
    ("#### 42 or 43", "42", 0),
    ("#### 42, or perhaps 43", "42", 0),
    ("#### 42, 43", "42", 0),
    ("#### 42 and 43", "42", 0),
    ("#### 42 (or 42.0)", "42", 1),
    ("#### 42, in total", "42", 1),
    ("#### 42" + " and so on" * 48, "42", 1),  # case R1: 480 characters later it is still the answer
]
UNMARKED = [
    ("The answer is 1,000", "1000", 1),
    ("It is 72, in total, so", "72", 1),
    ("10-3=7", "7", 1),
    ("She pays $1,234.50.", "1234.5", 1),
    ("It falls to \N{MINUS SIGN}3 degrees", "-3", 1),
    ("so 8-5", "5", 1),
    ("half, 1/2", "2", 0),
    ("no idea", "7", 0),
]


@pytest.mark.parametrize(("text", "gold", "right"), MARKED)
@pytest.mark.parametrize("method", ["strict", "flexible"])
def test_the_number_after_the_mark(text, gold, right, method):
    assert verdict(text, gold, method=method)["score"] == right


@pytest.mark.parametrize(("text", "gold", "right"), UNMARKED)
def test_without_a_mark_flexible_takes_the_last_number_and_strict_none(text, gold, right):
    flexible, strict = verdict(text, gold, method="flexible"), verdict(text, gold)
    assert (flexible["score"], flexible["acc"], flexible["format"]) == (right, right, 0)
    assert (strict["score"], strict["pred"], strict["format"]) == (0, None, 0)


def test_a_wrong_mark_is_not_rescued_by_a_right_number_elsewhere():
    assert verdict("#### 41 but 42", "42", method="flexible")["score"] == 0


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        (r"Answer: \boxed{5}", "5", 1),  # case R7, and the next
        (r"Answer: \fbox{5}", "5", 1),
        (r"\boxed{4} no, \boxed{5}", "5", 1),
        (r"\boxed{1,000}", "1000", 1),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", 1),
        (r"\boxed{5", "5", 0),
        ("#### 5", "5", 0),
        (r"\boxed{5-3}", "5", 0),
    ],
)
def test_boxed_answers(text, gold, right):
    assert verdict(text, gold, method="boxed")["score"] == right


def test_a_box_of_120_characters_is_found_whole():  # case R6
    content = "x" * 58 + r"{\a}" + "y" * 58
    assert len(content) == 120
    result = verdict(rf"so \boxed{{{content}}} it is", content, method="boxed")
    assert result == {"score": 1.0, "acc": 1.0, "pred": content, "reason": "right", "format": 1.0}


def test_flexible_reads_a_box_before_loose_numbers():
    assert verdict(r"\boxed{5} of 9", "5", method="flexible")["score"] == 1


def test_what_was_read_and_whether_it_was_in_form_are_reported_apart():  # case R8
    wrong = {"score": 0.0, "acc": 0.0, "pred": "41", "reason": "wrong", "format": 1.0}
    assert verdict("#### 41", "42") == wrong
    assert verdict("42", "42") == {**wrong, "pred": None, "reason": "no answer found", "format": 0.0}


@pytest.mark.parametrize("gold", [None, "", "  ", "None", "no number"])
@pytest.mark.parametrize("answer", ["", "None", "#### 5"])
def test_an_unusable_gold_is_said_and_never_rewarded(gold, answer):  # case R11
    with pytest.raises(UnusableGold):
        verdict(answer, gold)
    if gold != "no number":
        with pytest.raises(UnusableGold):
            verdict(answer, gold, method="boxed")


def test_numeric_golds_and_empty_answers():
    assert verdict("#### 42", 42)["score"] == 1
    assert verdict("", "42")["score"] == 0


def test_one_value_is_one_vote_however_it_is_written():
    texts = ("#### 1,000", "#### 1000.", "#### $1000.00 each", "####1000")
    assert {verdict(text, "5")["pred"] for text in texts} == {"1000"}


def test_nothing_in_an_answer_is_executed(tmp_path):  # case R5
    poison = f"pi = __import__('pathlib').Path('{tmp_path}/made').touch() \\begin{{pmatrix}}1&2\\end{{pmatrix}}"
    for method in ("strict", "boxed", "flexible"):
        for text in (f"#### {poison}", rf"\boxed{{{poison}}}", poison):
            assert verdict(text, "42", method=method)["score"] == 0
            assert verdict("#### 42 \\boxed{42}", "42", method=method)["score"] == 1
    assert not list(tmp_path.iterdir())


def test_unknown_method_is_refused_by_name():
    with pytest.raises(ValueError, match="loose"):
        verdict("#### 1", "1", method="loose")


@pytest.mark.parametrize(
    "text",
    ["####" + " " * 50_000, "#" * 50_000, "9" * 50_000, "#### " + "1," * 25_000, "\\boxed{" * 7_000, "#### 1" * 9_000],
)
@pytest.mark.parametrize("method", ["strict", "boxed", "flexible"])
def test_hostile_text_takes_linear_time(text, method):
    began = time.process_time()
    verdict(text, "5", method=method)
    assert time.process_time() - began < 1


def test_embedded_task_is_scored_as_gsm8k_is():
    for text in ("7+5=12\n12-3=9\n#### 9", "#### 9\n#### 8", "9", "#### 9.5", "#### 9 or 8", "<think>#### 9"):
        assert show_your_work.compute_score("rlx/show-your-work", text, "9") == verdict(text, "9")
    for gold in (None, "", " "):
        with pytest.raises(UnusableGold):
            show_your_work.compute_score("rlx/show-your-work", "", gold)
