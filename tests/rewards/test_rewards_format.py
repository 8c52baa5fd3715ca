import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config.errors import UserError
from verl_core.rewards import repetition, script, think_format
from verl_core.rewards.registry import check_values, default_scorer

GOOD = "<think>so</think>\n<answer>4</answer>"


def form(text, **keywords):
    return think_format.compute_score("any", text, "4", **keywords)


@pytest.mark.parametrize(
    ("text", "keywords"),
    [
        (GOOD, {}),
        (f"\n {GOOD}\n", {}),
        ("so</think><answer>4</answer>", {"opened": True}),
        (r"<think>so</think><answer>\boxed{4}</answer>", {"box": True}),
        (r"<think>so</think> It is \boxed{4}.", {"tags": ["think"], "box": True}),
        ("<think>so</think> It is 4.", {"tags": ["think"]}),
        (r"It is \boxed{4}.", {"tags": [], "box": True}),
        ("<plan>p</plan><think>t</think><answer>a</answer>", {"tags": ["plan", "think", "answer"]}),
        ("<think>a < b > c </div> <b></think><answer>4</answer>", {}),
    ],
)
def test_the_form_asked_for(text, keywords):
    found = form(text, **keywords)
    assert (found["score"], found["pieces"], found["reason"], found["acc"]) == (1, 1, "right", None)
    assert form(text, shaped=True, **keywords)["score"] == 1


@pytest.mark.parametrize(
    ("text", "pieces", "keywords"),
    [
        ("", 0, {}),
        ("4", 0, {}),
        ("<think></think><answer></answer>", 2 / 4, {}),
        ("<think>so</think>", 1 / 4, {}),
        ("<think>so<answer>4</answer>", 1 / 4, {}),
        ("<think>so</think><answer>4", 1 / 4, {}),
        ("<answer>4</answer><think>so</think>", 2 / 4, {}),
        ("<think>so<answer>4</answer></think>", 2 / 4, {}),
        ("<think>so<answer>4</think></answer>", 2 / 4, {}),
        (f"Well, {GOOD}", 3 / 4, {}),
        (f"{GOOD} Done.", 3 / 4, {}),
        ("<think>so</think> hm <answer>4</answer>", 3 / 4, {}),
        (f"{GOOD}<answer>5</answer>", 1 / 4, {}),
        (f"<think>x</think>{GOOD}", 1 / 4, {}),
        ("<think><think>so</think></think><answer>4</answer>", 1 / 4, {}),
        (GOOD, 1 / 4, {"opened": True}),
        (GOOD.replace("answer", "Answer"), 1 / 4, {}),
        (GOOD, 4 / 5, {"box": True}),
        (r"<think>\boxed{4}</think><answer>4</answer>", 4 / 5, {"box": True}),
        (r"<think>so</think><answer>\boxed{4</answer>", 4 / 5, {"box": True}),
        ("<think>so</think>", 1 / 2, {"tags": ["think"]}),
        ("It is 4.", 0, {"tags": [], "box": True}),
    ],
)
def test_what_breaks_the_form_costs_all_or_its_piece(text, pieces, keywords):
    plain, shaped = form(text, **keywords), form(text, shaped=True, **keywords)
    assert (plain["score"], plain["pieces"], shaped["score"]) == (0, pieces, pieces)
    assert plain["reason"].startswith("form broken: ")


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", " ", "x"]), max_size=12))
def test_only_one_order_of_marks_is_the_form(words):
    marks = [word for word in words if word.startswith("<")]
    found = form("".join(words))
    if found["score"]:
        assert marks == ["<think>", "</think>", "<answer>", "</answer>"]
        assert words.index("<think>") < words.index("x") < words.index("</answer>")
    assert 0 <= found["pieces"] <= 1


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"tags": "think"}, "tags is 'think'"),
        ({"tags": ["th<ink"]}, "not a list of names"),
        ({"tags": ["a", "a"]}, "twice"),
        ({"tags": []}, "nothing is asked for"),
        ({"tags": [], "box": True, "opened": True}, "no tags"),
    ],
)
def test_a_form_that_is_none_is_refused(keywords, said):
    with pytest.raises(ValueError, match=said):
        form("", **keywords)


def repeated(text, **keywords):
    return repetition.compute_score("any", text, None, **keywords)


@pytest.mark.parametrize(
    ("text", "keywords", "share"),
    [
        ("", {}, 0),
        ("one two", {"n": 3}, 0),
        ("one two three", {"n": 3}, 0),
        ("a b a b a b", {"n": 2}, 3 / 5),
        ("a a a a", {"n": 1}, 3 / 4),
        ("a b c a b c", {"n": 3}, 1 / 4),
        ("abab", {"n": 2, "unit": "characters"}, 1 / 3),
        ("wait " * 1000, {}, 980 / 981),
    ],
)
def test_repetition_is_the_share_of_phrases_said_before(text, keywords, share):
    found = repeated(text, penalty=0.5, **keywords)
    assert found["repeated"] == pytest.approx(share) and found["score"] == pytest.approx(-0.5 * share)
    assert (found["reason"] == "repeats itself") == (share > 0)


@given(st.text(alphabet="ab ", max_size=60), st.integers(1, 12))
def test_repetition_counts_as_a_set_of_tuples_does(text, n):
    words = text.split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    expected = 1 - len(set(grams)) / len(grams) if grams else 0
    assert repeated(text, n=n)["repeated"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "keywords",
    [{"n": 0}, {"n": 2.5}, {"n": True}, {"penalty": -1}, {"penalty": float("nan")}, {"unit": "lines"}],
)
def test_repetition_refuses_other_values_by_name(keywords):
    with pytest.raises(ValueError, match=f"{next(iter(keywords))} is"):
        repeated("", **keywords)


@pytest.mark.parametrize(
    ("text", "keywords", "share"),
    [
        ("The answer is 42.", {}, 1),
        ("Ответ: ok", {}, 2 / 7),
        ("Ответ 42", {"scripts": "cyrillic"}, 1),
        ("答案是四", {"scripts": "chinese"}, 1),
        ("答案是 four", {"scripts": ["chinese", "latin"]}, 1),
        ("答えは四", {"scripts": "japanese"}, 1),
        ("정답", {"scripts": "korean"}, 1),
        ("café Straße", {}, 1),
        ("ＡＢ", {}, 1),
        ("42 + 1 = 43", {}, 0),
        ("", {}, 0),
    ],
)
def test_script_is_the_share_of_letters(text, keywords, share):
    found = script.compute_score("any", text, None, **keywords)
    assert found["score"] == found["share"] == pytest.approx(share)
    assert script.compute_score("any", text, None, threshold=0.9, **keywords)["score"] == (share >= 0.9)


@pytest.mark.parametrize(
    "keywords",
    [{"scripts": "klingon"}, {"scripts": ["latin", "x"]}, {"scripts": []}, {"threshold": 0}, {"threshold": 2}],
)
def test_script_refuses_other_values_by_name(keywords):
    with pytest.raises(ValueError, match=f"{next(iter(keywords))} is"):
        script.compute_score("any", "", None, **keywords)


def test_every_known_script_is_one_of_unicode():
    names = [unicodedata.name(c, "") for c in map(chr, range(0x10000)) if c.isalpha()]
    for prefix in {prefix for prefixes in script.SCRIPTS.values() for prefix in prefixes}:
        assert any(name.startswith(prefix) for name in names), prefix


@pytest.mark.parametrize(
    ("source", "keywords", "said"),
    [
        ("format", {"tags": "think"}, r"the reward of format: .*tags is 'think'"),
        ("format", {"shaped": "yes"}, r"shaped='yes': expected true or false"),
        ("repetition", {"n": 0}, "n is 0"),
        ("repetition", {"unit": "lines"}, r"unit='lines': expected"),
        ("script", {"scripts": ["latin", "klingon"]}, "klingon"),
        ("gsm8k", {"method": "loose"}, r"method='loose'"),
    ],
)
def test_values_of_keywords_are_checked_before_an_answer(source, keywords, said):
    with pytest.raises(UserError, match=said):
        check_values(default_scorer(source), keywords, f"the reward of {source}")


def test_values_that_a_rule_takes_pass():
    for source, keywords in (("format", {"tags": ["a"], "box": True}), ("script", {"threshold": 1}), ("gsm8k", {})):
        check_values(default_scorer(source), keywords, source)
