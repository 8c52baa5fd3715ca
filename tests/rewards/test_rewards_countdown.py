"""Countdown's verifier: which texts are right, why others are wrong, and that none does harm."""

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.rewards.arithmetic import NotArithmetic, work_out
from verl_core.rewards.countdown import compute_score
from verl_core.rewards.verdict import UnusableGold


def judged(text: str, target: int = 24, numbers: tuple[int, ...] = (3, 3, 8, 8), **keywords) -> dict:
    return compute_score("countdown", text, {"target": target, "numbers": list(numbers)}, {}, **keywords)


RIGHT = [
    "<answer>8 / (3 - 8 / 3)</answer>",
    "<answer>8/(3-8/3) = 24</answer>",
    "<answer> 8 ÷ (3 − 8 ÷ 3) </answer> and that is all" + " there is to say" * 100,
    "<answer>**8 / (3 - 8 / 3)**</answer>",
    "<answer>wrong</answer> no, <answer>8/(3-8/3)</answer>",
    "<think>3 + 3 + 8 + 8</think><answer>8/(3-(8/3))</answer>",
    "<answer>8/[3-8/3]</answer>",
    "<answer>８/(3-８/3)</answer>",  # full-width digits
    "<answer>--8/(3-8/3)</answer>",
    r"So it is \boxed{8 \div (3 - 8 / 3)}.",
    r"\boxed{\frac{8}{3 - \frac{8}{3}} = 24}",
    r"\boxed{\dfrac{8}{3-\tfrac{8}{3}}}",
    "I get:\n8 / (3 - 8 / 3) = 24.",
    "1) 8 / (3 - 8 / 3) = 24\nDone!",
    r"\[ 8 \div (3 - 8 \div 3) = 24 \]",
    "The expression is $8/(3-8/3)$",
    "<answer>8/(3-8/3)",  # where generation stops at the closing tag
]


@pytest.mark.parametrize("text", RIGHT)
def test_right(text):
    verdict = judged(text)
    assert (verdict["score"], verdict["acc"], verdict["reason"]) == (1.0, 1.0, "right")
    assert verdict["format"] == float("</answer>" in text)


WRONG = {
    "": "no answer found",
    "I give up.": "no answer found",
    "The answer is 24": "no answer found",
    "<answer>24</answer>": "a number that is not given, or used too often",
    "<answer></answer>": "not an arithmetic expression",
    "<answer>8/(3-8/3) is it</answer>": "not an arithmetic expression",
    "<answer>8 + 8 + 3 + 3</answer>": "not the target",
    "<answer>8*3</answer>": "a given number left out",
    "<answer>8*3*(8-8+1)/1</answer>": "a number that is not given, or used too often",
    "<answer>8*3+8-8</answer>": "a number that is not given, or used too often",
    "<answer>83-83</answer>": "a number that is not given, or used too often",
    "<answer>8/(3-8/3) = 25</answer>": "an equation that does not hold",
    "<answer>8+8+3+3 = 24</answer>": "an equation that does not hold",
    "<answer>8/(3-8/3) = x</answer>": "not an arithmetic expression",
    "<answer>8/(3-8/3) = 24 = 24</answer>": "not an arithmetic expression",
    "<answer>8/(8-8)*3*3</answer>": "division by zero",
    "<answer>8/(3+3-8+2)</answer>": "division by zero",
    "<answer>8**8**8**8**3</answer>": "not an arithmetic expression",
    "<answer>8^3</answer>": "not an arithmetic expression",
    "<answer>8//3</answer>": "not an arithmetic expression",
    "<answer>8(3)</answer>": "not an arithmetic expression",
    "<answer>8.0*3</answer>": "not an arithmetic expression",
    "<answer>8e1</answer>": "not an arithmetic expression",
    "<answer>8!</answer>": "not an arithmetic expression",
    "<answer>(8*3</answer>": "not an arithmetic expression",
    "<answer>8*3)</answer>": "not an arithmetic expression",
    "<answer>8*²</answer>": "not an arithmetic expression",
    "<answer>__import__('os').system('touch /tmp/x')</answer>": "not an arithmetic expression",
    "<answer>(lambda: 24)()</answer>": "not an arithmetic expression",
    "<answer>" + "(" * 400 + "8" + ")" * 400 + "</answer>": "too deep an expression",
    "<answer>" + "-" * 900 + "8" + "</answer>": "a given number left out",
    "<answer>" + "8*" * 100_000 + "8</answer>": "too long an expression",
    "<answer>" + "9" * 500 + "</answer>": "too large a number",
    r"\boxed{8/(3-8/3)": "not an arithmetic expression",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong(text):
    verdict = judged(text)
    assert (verdict["score"], verdict["acc"]) == (0.0, 0.0)
    assert verdict["reason"] == WRONG[text]


def test_numbers_may_be_left_over_where_that_is_asked_for():
    assert judged("<answer>8*3</answer>", at_most_once=True)["score"] == 1
    assert judged("<answer>8+8+8</answer>", at_most_once=True)["reason"].startswith("a number that is not given")


def test_a_gold_may_be_json_and_must_be_usable():
    assert compute_score("countdown", "<answer>1+2</answer>", '{"target": 3, "numbers": [1, 2]}')["score"] == 1
    for gold in (None, "", "3", {}, {"target": 3, "numbers": []}, {"target": None, "numbers": [1]}, [1], "{", 3):
        with pytest.raises(UnusableGold):
            compute_score("countdown", "<answer>1+2</answer>", gold)


@pytest.mark.parametrize("piece", ["<answer>", "8+", "((", "-", "1 ", " ", "\\frac{", "8=", "\n1+1", "\\boxed{", "*"])
def test_time_grows_with_the_length_only(piece):
    began = time.process_time()
    judged(piece * (300_000 // len(piece)))
    assert time.process_time() - began < 2


_EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=8,
)


@settings(max_examples=100)
@given(_EXPRESSIONS)
def test_values_are_those_of_exact_fractions(text):
    parts = [f"Fraction({p})" if p.isdigit() else p for p in text.replace("(", "( ").replace(")", " )").split()]
    try:
        expected = eval(" ".join(parts), {"Fraction": Fraction})  # of this test's own text
    except ZeroDivisionError:
        with pytest.raises(NotArithmetic, match="division by zero"):
            work_out(text)
        return
    assert work_out(text).value == expected


@settings(max_examples=100)
@given(st.text(st.sampled_from("0123456789+-*/()={}\\ <>answerfracboxed\n\u2212\u00d7\u0663"), max_size=60))
def test_no_text_is_an_error(text):
    assert judged(text)["score"] in (0.0, 1.0)
