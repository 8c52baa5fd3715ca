import time

import pytest

from verl_core.rewards.final_answer import after_answer_word, after_thinking, last_line, tagged


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("4", "4"),
        ("<think>5</think>4", "4"),
        ("5</think>4", "4"),
        ("<think>5</think>4<think>6</think>7", "7"),
        ("<think>5</think>", ""),
        ("<think>5", ""),
        ("4<think>5", "4"),
        ("<think>5</think>4<think>6", "4"),
        ("<THINK>5</Think>4", "4"),
        ("<think><think>5</think>6</think>4", "4"),
    ],
)
def test_what_is_shown_after_thinking(text, shown):
    assert after_thinking(text) == shown


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("4", None),
        ("<answer>4", None),
        ("4</answer>", None),
        ("</answer>4<answer>", None),
        ("<answer> 4\n</answer>", "4"),
        ("<answer>5</answer><answer>4</answer>", "4"),
        ("<answer>4</answer><answer>5", "4"),
        ("<answer>5<answer>4</answer>6</answer>", "4"),
        ("<ANSWER>4</Answer>", "4"),
        ("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}<answer>4</answer>", "4"),
    ],
)
def test_what_the_last_closed_tag_holds(text, content):
    assert tagged(text) == content
    assert tagged(text.replace("answer", "x").replace("ANSWER", "x").replace("Answer", "x"), "x") == content


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("4", None),
        ("My answers are 4", None),
        ("the answer isn't 4", None),
        ("Answer: 4", "4"),
        ("The final answer is: **4**\nbye", "4**"),
        ("The answer must be 4.", "4."),
        ("Answer:\n\n 4\n5", "4"),
        ("Answer:", ""),
        ("answer is 5. Answer = 4", "4"),
    ],
)
def test_what_follows_the_last_word_answer(text, rest):
    assert after_answer_word(text) == rest


def test_the_last_line_is_not_blank():
    assert [last_line(text) for text in ("", " \n", "4", "5\n 4 \n\n")] == ["", "", "4", "4"]


@pytest.mark.parametrize(
    "part", ["<think>", "</think>", "<answer>", "</answer>", "answer is ", "answer: \n", "\n", " "]
)
def test_time_grows_with_the_length_only(part):
    began = time.process_time()
    for read in (after_thinking, tagged, after_answer_word, last_line):
        read(part * 100_000)
    assert time.process_time() - began < 2
