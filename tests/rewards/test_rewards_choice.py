import pytest

from verl_core.rewards import multiple_choice
from verl_core.rewards.verdict import UnusableGold

CHOICES = ["a red dog", "Vitamin A", "It does not rain", "12"]


def verdict(text, gold="B", choices=None):
    return multiple_choice.compute_score("any", text, gold, {"choices": choices} if choices else None)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        (" **B**. ", "B"),
        ("(b)", "B"),
        ("Option B", "B"),
        ("<answer>B</answer>", "B"),
        ("<answer> (B) a cat </answer> C", "B"),
        ("<ANSWER>b</ANSWER>", "B"),
        ("<answer>A</answer> no, <answer>B</answer>", "B"),
        (r"so \boxed{B}", "B"),
        (r"so \boxed{\text{(B)}} and not A", "B"),
        ("Answer: B", "B"),
        ("**Answer:** B", "B"),
        ("Answer: **B) The cat**", "B"),
        ("Answer:\n\nB", "B"),
        ("ANSWER IS B.", "B"),
        ("The correct answer is (B) because A is too heavy and C is not round.", "B"),
        ("Answer: A\nWait.\nAnswer: B", "B"),
        ("The answer is option B, since I like it", "B"),
        ("A is too heavy.\nC is too light.\nSo it must be B.", "B"),
        ("I think it is B", "B"),
        ("A dog barks, so B", "B"),
        ("It is B\nHope this helps!", "B"),
        ("My answer is based on physics.\nB", "B"),
        ("<think>A? C? Answer: C</think>B", "B"),
        ("A is the one", "A"),
        ("The first, A", "A"),
        ("Answer: B. It does not rain", "B"),
        ("Answer: I", "I"),
    ],
)
def test_the_letter_that_the_answer_settles_on(text, letter):
    assert verdict(text, letter) == {"score": 1.0, "acc": 1.0, "pred": letter, "reason": "right", "format": 1.0}
    assert verdict(text, "D") == {"score": 0.0, "acc": 0.0, "pred": letter, "reason": "wrong", "format": 1.0}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no answer found"),
        ("   \n", "no answer found"),
        ("no idea", "no answer found"),
        ("I like a good question", "no answer found"),
        ("<answer></answer> B", "no answer found"),
        ("<think>Answer: B</think>", "no answer found"),
        ("<think>Answer: B", "no answer found"),
        ("BB", "no answer found"),
        ("vitamin B-12", "no answer found"),
        ("K", "no answer found"),
        ("A or B", "several answers"),
        ("Answer: A/B", "several answers"),
        ("Answer: B, maybe C", "several answers"),
        ("<answer>A, B, C, D</answer>", "several answers"),
        (r"\boxed{A} or \boxed{B}", "several answers"),
        ("ABCD: A B C D", "several answers"),
        ("A) cat\nB) dog\nC) cow\nD) pig", "several answers"),
        ("A: yes\n**B:** yes", "several answers"),
        ("Answer: not B", "says what it is not"),
        ("The answer is not B", "says what it is not"),
        ("The answer isn't B", "says what it is not"),
        ("anything except B", "says what it is not"),
        ("B is not right", "says what it is not"),
        ("B is wrong", "says what it is not"),
    ],
)
def test_what_settles_on_no_letter_is_no_answer(text, reason):
    assert verdict(text) == {"score": 0.0, "acc": 0.0, "pred": None, "reason": reason, "format": 0.0}


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: vitamin a", "B"),
        ("<answer>B) Vitamin A</answer>", "B"),
        ("<answer>A Red Dog.</answer>", "A"),
        ("12", "D"),
        ("C. It does not rain", "C"),
        ("Answer: B) It does not rain", None),  # the letter of one option, the words of another
        ("Answer: E", None),  # there are four options
        ("Answer: A, vitamin A", "A"),
    ],
)
def test_with_the_options_known_their_words_answer_too(text, letter):
    found = verdict(text, "D" if letter is None else letter, CHOICES)
    assert (found["pred"], found["score"]) == (letter, float(letter is not None))


@pytest.mark.parametrize(
    ("gold", "choices", "letter"),
    [
        ("c", None, "C"),
        (2, None, "C"),
        ("2", None, "C"),
        (0, CHOICES, "A"),
        ("vitamin A", CHOICES, "B"),
        ("12", CHOICES, "D"),
        (1, ["4", "1", "2", "3"], "B"),
        ("-5", ["5", "-5"], "B"),
    ],
)
def test_golds_are_letters_indices_or_words(gold, choices, letter):
    assert verdict(letter, gold, choices)["score"] == 1


@pytest.mark.parametrize(
    ("gold", "choices"),
    [
        *((gold, None) for gold in (None, "", "None", "K", True, "words")),
        *((gold, CHOICES) for gold in ("E", 4, -1)),
        ("1", ["4", "2", "1"]),
        ("cat", ["cat", "the", "cat"]),
    ],
)
def test_golds_that_name_no_option_or_two_are_unusable(gold, choices):
    with pytest.raises(UnusableGold):
        verdict("A", gold, choices)
