import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.rewards import qa
from verl_core.rewards.plain_text import normalised
from verl_core.rewards.verdict import UnusableGold


def verdict(text, gold, score=qa.compute_score):
    return score("searchR1_nq", text, gold)


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("<answer>Paris</answer>", "Paris"),
        ("<answer> the PARIS. </answer>", "paris"),
        ("<answer>London</answer> or <answer>Paris</answer>", "Paris"),
        ("It is in France.\nAnswer: **Paris**", "Paris"),
        ("The answer is: Paris.", "Paris"),
        ("Final answer:\nParis", "Paris"),
        ("So the answer must be Paris", "Paris"),
        ("I looked it up.\n\nParis\n", "Paris"),
        ("<think>London?</think>Paris", "Paris"),
        ("<answer>Ｐａｒｉｓ</answer>", "Paris"),
        ("<answer>Pa\N{ZERO WIDTH SPACE}ris</answer>", "Paris"),
        ("<answer>cafe\N{COMBINING ACUTE ACCENT}</answer>", "Café"),
        ("<answer>Straße</answer>", "STRASSE"),
        ("<answer>1,000</answer>", "1000"),
        ("<answer>\N{MINUS SIGN}5</answer>", "-5"),
        ("<answer>2.0.</answer>", "2.0"),
        ("<answer>Al-Khwarizmi</answer>", "Al\N{NON-BREAKING HYPHEN}Khwarizmi"),
        ("<answer>A</answer>", "A"),
        ("<answer>The The</answer>", "the the"),
        ("<answer>Big Apple</answer>", ["New York", "the Big Apple"]),
        ("<answer>Big Apple</answer>", {"target": ["New York", "the Big Apple"]}),
        ("<answer>Big Apple</answer>", {"target": "Big Apple"}),
        ("<answer>12</answer>", 12),
    ],
)
def test_an_answer_that_says_the_same_is_right(text, gold):
    found = verdict(text, gold)
    assert (found["score"], found["acc"], found["f1"], found["reason"]) == (1, 1, 1, "right")
    assert verdict(text, gold, qa.compute_f1) == found


@pytest.mark.parametrize(
    ("text", "gold", "f1"),
    [
        ("<answer>Paris, France</answer>", "Paris", 2 / 3),
        ("<answer>the city of Paris</answer>", ["Rome", "Paris city"], 4 / 5),
        ("<answer>yes or no</answer>", "yes", 0),
        ("<answer>yes</answer>", "yes it is", 0),
        ("<answer>-5</answer>", "5", 0),
        ("<answer>15</answer>", "1.5", 0),
        ("<answer>paris paris paris</answer>", "paris", 2 / 4),
        ("<answer>Rome</answer> Paris", "Paris", 0),
        ("Paris\nAnswer: Rome", "Paris", 0),
    ],
)
def test_a_share_of_the_words_is_a_share_of_f1_only(text, gold, f1):
    exact, partial = verdict(text, gold), verdict(text, gold, qa.compute_f1)
    assert (exact["score"], exact["acc"], exact["reason"]) == (0, 0, "wrong")
    assert exact["f1"] == partial["score"] == pytest.approx(f1)
    assert partial["acc"] == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no answer found"),
        (" \n ", "no answer found"),
        ("<answer></answer> Paris", "no answer found"),
        ("<answer>\N{ZERO WIDTH SPACE}</answer>", "no answer found"),
        ("<think>Paris</think>", "no answer found"),
        ("<think><answer>Paris</answer>", "no answer found"),
        ("<answer>" + "Paris " * 1000 + "</answer>", "answer too long"),
    ],
)
def test_no_answer_is_never_right(text, reason):
    found = verdict(text, ["Paris", ""], qa.compute_f1)
    assert (found["score"], found["acc"], found["pred"], found["reason"]) == (0, 0, None, reason)


@pytest.mark.parametrize("gold", [None, "", " ", "None", [], [None, ""], {}, {"target": []}, {"target": None}])
@pytest.mark.parametrize("text", ["", "None", "<answer></answer>"])
def test_case_r11_a_gold_that_says_nothing_is_unusable(text, gold):
    with pytest.raises(UnusableGold):
        verdict(text, gold)


def squad(text):
    """SQuAD's own normalisation, of words without digits."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


@given(st.text(alphabet="aAnNtThHeE xyZ.,;!?-_'\"$%()[]{}\t\n", max_size=40))
def test_plain_text_is_squads_normalisation_where_words_are_left(text):
    assert normalised(text) == squad(text) or not squad(text)


@given(st.text(max_size=40))
def test_normalising_twice_changes_nothing(text):
    once = normalised(text, articles=True)
    assert normalised(once, articles=True) == once
