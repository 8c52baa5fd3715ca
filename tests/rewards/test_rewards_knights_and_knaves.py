"""Knights and knaves: what a text says of each person, and that no text does harm."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.rewards.knights_and_knaves import compute_score
from verl_core.rewards.verdict import UnusableGold

GOLD = {"names": ["Ada", "Ben", "Ann"], "knights": [True, False, False]}
HEROES = {"names": ["Mary Ann", "Ann"], "knights": [True, False], "knight": "hero", "knave": "egoist"}


def judged(text: str, gold=GOLD) -> dict:
    return compute_score("knights_and_knaves", text, gold, {})


RIGHT = [
    "<answer>Ada is a knight, Ben is a knave and Ann is a knave</answer>",
    "<answer>\nAda: knight\nBen: knave\nAnn: knave\n</answer>",
    "<answer>ADA IS A KNIGHT, BEN IS A KNAVE, ANN IS A KNAVE.</answer>",
    "<answer>(1) Ada is a knight\n(2) Ben is a knave\n(3) Ann is a knave</answer>",
    "<answer>**Ada** is a **knight**; both Ben and Ann are knaves</answer>",
    "<answer>Ben, Ann: knaves. Ada: knight.</answer>",
    "<answer>Ada = knight, Ben = knave, Ann = knave</answer>",
    "<answer>Ada -> knight, Ben -> knave, Ann → knave</answer>",
    "<answer>| Ada | knight |\n| Ben | knave |\n| Ann | knave |</answer>",
    "<answer>Ada (knight), Ben (knave), Ann (knave)</answer>",
    "<answer>Ada is not a knave, Ben isn't a knight, and Ann is not a knight</answer>",
    "<answer>Ada is a knight and Ben a knave and Ann a knave</answer>",
    "<answer>Ada is a knight, not a knave. Ben is a knave and not a knight. Ann is a knave.</answer>",
    "<think>Say Ada is a knave.</think>So Ada is a knight, Ben is a knave, Ann is a knave.",
    "Is Ada a knight or a knave? Ada is a knight. Ben is a knave. Ann is a knave.",
    "<answer>Ada is a knave</answer> No: <answer>Ada is a knight, Ben is a knave, Ann is a knave</answer>",
    "<answer>Ada is a knight. Ben is a knave. Ann is a knave. So Ada is a knight.</answer>",
]


@pytest.mark.parametrize("text", RIGHT)
def test_right(text):
    verdict = judged(text)
    assert (verdict["score"], verdict["acc"], verdict["people"], verdict["reason"]) == (1.0, 1.0, 1.0, "right")
    assert verdict["pred"] == "Ada knight, Ben knave, Ann knave"
    assert verdict["format"] == float("<answer>" in text)


WRONG = {
    "": ("no answer found", 0),
    "They are all liars": ("no answer found", 0),
    "<answer>Ada is a knight/knave, Ben is a knight/knave, Ann is a knight/knave</answer>": ("no answer found", 0),
    "<answer>knight, knave, knave</answer>": ("no answer found", 0),
    "<answer>Ada is a knight, Ben is a knave</answer>": ("somebody is left out", 2),
    "<answer>Ada is a knight, Ben is a knave, Annie is a knave</answer>": ("somebody is left out", 2),
    "<answer>Ada is a knight, Ben is a knave, Ann is a knight</answer>": ("wrong", 2),
    "<answer>Ada is a knave, Ben is a knight, Ann is a knight</answer>": ("wrong", 0),
    "<answer>Ada is a knight. Ada is a knave. Ben is a knave. Ann is a knave.</answer>": ("somebody is called both", 2),
    "Ada is a knave? No. Ada is a knight, Ben is a knave, Ann is a knave": ("somebody is called both", 2),
    "<answer>Ada says that Ben is a knave. Ann is one of us, a knave</answer>": ("somebody is left out", 1),
    "<answer>Ada, Ben and Ann are knights and knaves</answer>": ("somebody is called both", 0),
    "<answer>Ada is a knight and a knave, Ben is a knave, Ann is a knave</answer>": ("somebody is called both", 2),
    "<answer>Knight: Ada, Knave: Ben, Knave: Ann</answer>": ("somebody is left out", 1),
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong(text):
    verdict = judged(text)
    reason, people = WRONG[text]
    assert (verdict["score"], verdict["acc"], verdict["reason"]) == (0.0, 0.0, reason)
    assert verdict["people"] == pytest.approx(people / 3)


def test_other_words_for_the_roles_and_names_within_names():
    assert judged("<answer>Mary Ann is a hero, Ann is an egoist</answer>", HEROES)["score"] == 1
    assert judged("<answer>Ann is an egoist; Mary Ann is among the heroes</answer>", HEROES)["score"] == 0
    assert judged("<answer>Mary Ann is a knight, Ann is a knave</answer>", HEROES)["reason"] == "no answer found"


def test_an_unusable_gold_is_the_rows_fault():
    for gold in (None, "", "Ada is a knight", {}, {"names": [], "knights": []}, {"names": ["A"], "knights": []}, 3):
        with pytest.raises(UnusableGold):
            judged("<answer>Ada is a knight</answer>", gold)
    with pytest.raises(UnusableGold):
        judged("", {"names": ["A", "A"], "knights": [True, False]})
    assert judged("Ada: knave", '{"names": ["Ada"], "knights": [false]}')["score"] == 1


@pytest.mark.parametrize(
    "piece", ["Ada ", "Ada is ", "knight ", "<answer>", "Ada is a knight or ", "-", "\u2019", "a'a"]
)
def test_time_grows_with_the_length_only(piece):
    began = time.process_time()
    judged(piece * (200_000 // len(piece)))
    judged("Ada " * 20_000 + piece * (100_000 // len(piece)))
    assert time.process_time() - began < 2


WORDS = ("Ada", "Ben", "Ann", "is", "not", "a", "knight", "knaves", ",", "/", "or", ":", "\n", "<answer>", "</answer>")


@settings(max_examples=100)
@given(st.lists(st.sampled_from(WORDS)))
def test_no_text_is_an_error(words):
    verdict = judged(" ".join(words))
    assert verdict["score"] == float(verdict["people"] == 1)
