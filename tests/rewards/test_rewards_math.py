import json
import subprocess
import sys
import time

import pytest
from answer_table import rows
from hypothesis import given
from hypothesis import strategies as st

from verl_core.rewards import gsm8k, math
from verl_core.rewards.boxed import last_box
from verl_core.rewards.mathematics.equality import same_answer
from verl_core.rewards.mathematics.expression import Unreadable, expression
from verl_core.rewards.mathematics.symbolic import same_symbolically
from verl_core.rewards.verdict import UnusableGold


def verdict(text, gold, **kwargs):
    return math.compute_score("math", text, gold, **kwargs)


@pytest.mark.parametrize(("table", "rule"), [("math", math), ("gsm8k", gsm8k)])
def test_every_hand_made_answer_has_its_verdict(table, rule):
    table = rows(table)
    wrong = [r for r in table if rule.compute_score("", r["answer"], r["gold"])["score"] != r["verdict"]]
    assert not wrong, json.dumps(wrong[0], ensure_ascii=False)


def test_the_table_is_large_has_both_verdicts_in_every_group_and_says_why():
    table = rows("math") + rows("gsm8k")
    assert len(table) >= 300 and all(r["why"] for r in table)
    assert len({(r["answer"], r["gold"]) for r in rows("math")}) == len(rows("math"))
    right = {r["group"] for r in table if r["verdict"]}
    assert right >= {r["group"] for r in table} - {"hostile", "hostile and broken", "calculations and lists"}


BOXES = [
    (r"\boxed{5}", "5"),
    (r"\fbox{5}", "5"),
    (r"\boxed 5", "5"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed\frac12", r"\frac12"),
    (r"\boxed{\{1\}}", r"\{1\}"),
    (r"\boxed{4} no \boxed{5}", "5"),
    (r"\boxed{5} and \boxed{6}", "5, 6"),
    (r"$\boxed{5}$, $\boxed{6}$", "5, 6"),
    (r"\boxed{5}\boxed{6}", "6"),
    (r"\boxed{\boxed{7}}", "7"),
    (r"\boxed{5} in \boxed{}", "5"),
    (r"\boxed{}", None),
    (r"\boxed{5", None),
    (r"\boxed{4}, \boxed{5", None),
    (r"\boxes{5}", None),
    ("no box", None),
]


@pytest.mark.parametrize(("text", "content"), BOXES)
def test_the_last_box(text, content):
    assert last_box(text) == content


def test_a_box_of_120_characters_is_found_whole_wherever_it_stands():  # case R6
    content = "+".join("xyzt" * 15 + "a")
    assert len(content) == 121
    text = rf"\boxed{{{content}}}" + " and so on" * 100  # case R1: nor is the text clipped
    assert verdict(text, content) == {"score": 1, "acc": 1, "pred": content, "reason": "right", "format": 1}


def test_an_answer_line_with_a_box_is_taken_out_of_its_box_once():  # case R7
    for extract in ("boxed", "answer_line", "flexible"):
        assert verdict(r"Answer: \boxed{5}", "5", extract=extract)["score"] == 1
    assert verdict(r"Answer: \fbox{5}", "5")["score"] == 1


@pytest.mark.parametrize(
    ("text", "boxed", "answer_line", "flexible"),
    [
        (r"\boxed{5}", (1, 1), (1, 0), (1, 1)),
        ("Answer: 5", (0, 0), (1, 1), (1, 0)),
        ("**Answer:** $5$", (0, 0), (1, 1), (1, 0)),
        ("The final answer is 5.", (0, 0), (1, 1), (1, 0)),
        ("Answer: 4\n" + r"\boxed{5}", (1, 1), (0, 1), (1, 1)),
        ("#### 5", (0, 0), (0, 0), (1, 0)),
        ("so $x = 5$ holds", (0, 0), (0, 0), (1, 0)),
        (r"so \(x = 5\) holds", (0, 0), (0, 0), (1, 0)),
        ("that makes 5 apples", (0, 0), (0, 0), (1, 0)),
        ("5 apples of 7", (0, 0), (0, 0), (0, 0)),
        ("no idea", (0, 0), (0, 0), (0, 0)),
    ],
)
def test_where_the_answer_is_looked_for_is_a_setting_and_form_is_reported_apart(text, boxed, answer_line, flexible):
    for extract, expected in (("boxed", boxed), ("answer_line", answer_line), ("flexible", flexible)):  # case R8
        found = verdict(text, "5", extract=extract)
        assert (found["score"], found["format"]) == expected, extract


def test_what_was_wrong_is_said():
    assert verdict(r"\boxed{4}", "5") == {"score": 0, "acc": 0, "pred": "4", "reason": "wrong", "format": 1}
    assert verdict("4", "5") == {"score": 0, "acc": 0, "pred": None, "reason": "no answer found", "format": 0}


def test_any_of_several_golds_is_right():
    for answer in (r"\boxed{\frac{\pi}{2}}", r"\boxed{90^\circ}"):
        assert verdict(answer, [r"\frac{\pi}{2}", r"90^\circ"])["score"] == 1
    assert verdict(r"\boxed{1}", ("2", "3"))["score"] == 0
    assert verdict(r"\boxed{18}", 18)["score"] == verdict(r"\boxed{2.5}", 2.5)["score"] == 1


@pytest.mark.parametrize("gold", [None, "", "  ", "None", "$$", r"\boxed{}", r"\boxed{5", "{}", [], ["5", ""], [None]])
@pytest.mark.parametrize("answer", ["", "None", r"\boxed{}", r"\boxed{None}", r"\boxed{5}"])
def test_an_unusable_gold_is_said_and_never_rewarded(gold, answer):  # case R11
    with pytest.raises(UnusableGold):
        verdict(answer, gold)


@pytest.mark.parametrize("empty", ["", " ", "None", r"\boxed{}", r"\boxed{ }", r"\boxed{None}", r"\boxed{?}"])
def test_an_answer_that_says_nothing_is_wrong(empty):  # case R11
    assert verdict(empty, "5")["score"] == verdict(empty, r"\emptyset")["score"] == 0


def test_unknown_extraction_is_refused_by_name():
    with pytest.raises(ValueError, match="loose"):
        verdict("1", "1", extract="loose")


def test_code_in_an_answer_is_not_run_and_changes_no_later_verdict(tmp_path):  # case R5
    made = tmp_path / "made"
    calls = [
        f"__import__('pathlib').Path('{made}').touch()",
        f"open('{made}', 'w').write('x')",
        f"\\pi + __import__('os').system('touch {made}')",
        f"exec(\"open('{made}','w')\")",
        f"\\begin{{pmatrix}}1 & open('{made}','w') \\\\ 3 & 4\\end{{pmatrix}}",
        f"\\text{{open}}('{made}')",
        f"\\write18{{touch {made}}}",
        f"\\input{{|touch {made}}}",
        f"\\immediate\\write18{{touch {made}}} \\pi",
    ]
    for poison in calls:
        for gold in ("5", r"\pi", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", poison + " + 1"):
            for extract in ("boxed", "flexible"):
                assert verdict(rf"\boxed{{{poison}}} Answer: {poison}", gold, extract=extract)["score"] == 0
        same_symbolically(r"\pi", poison)
        assert verdict(r"\boxed{\pi}", r"\pi")["score"] == verdict(r"\boxed{\frac{2}{4}}", r"\frac{1}{2}")["score"] == 1
    assert not made.exists()


def test_no_code_path_from_an_answer_leads_to_an_evaluator(monkeypatch):  # case R5
    import builtins

    import sympy
    from sympy.parsing import sympy_parser

    same_symbolically(r"\gcd(4,6)", "2")  # all is imported

    def refuse(*args, **kwargs):
        raise AssertionError(f"evaluates {args[:1]}")

    monkeypatch.setattr(builtins, "eval", refuse)
    monkeypatch.setattr(builtins, "exec", refuse)
    monkeypatch.setattr(sympy_parser, "parse_expr", refuse)
    monkeypatch.setattr(sympy_parser, "eval_expr", refuse)
    monkeypatch.setattr(sympy, "parse_expr", refuse)
    for row in rows("math")[::6]:
        same_symbolically(row["gold"], row["answer"].partition("{")[2])
        assert verdict(row["answer"], row["gold"])["score"] == row["verdict"]


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9}}",
        "9^{9^{9^{9}}}",
        "10^{10^{100}}",
        "999999999!",
        "((((9!)!)!)!)!",
        r"\sum_{k=1}^{10^{9}} k",
        r"\int_0^1 x^{x^x} dx",
        r"\lim_{n\to\infty} (1+1/n)^n",
        r"(x+1)^{100000}",
        r"\sin(10^{99})",
        r"\binom{10^9}{5\cdot 10^8}",
        "1e999999999",
        "9" * 390,
        "9" * 100_000,
        "1/" * 190 + "3",
        "(" * 190 + "5" + ")" * 190,
        "{" * 100_000,
        r"\sqrt{" * 60 + "5" + "}" * 60,
        "2^" * 190 + "2",
        "x" * 390,
        ",".join(str(n) for n in range(130)),
        r"\{" + ",".join(str(n) for n in range(130)) + r"\}",
        r"\pm" * 100 + "5",
        "x=" * 190 + "6",
        "-" * 391 + "5",
        "5" + "!" * 300,
        "5" + "'" * 300,
        r"\frac" * 90,
        "1 " * 190,
        r"\text{" * 90,
        "\x00" * 300,
        "\ud800",
        r"\mathrm{d}" * 40,
        r"x_{x_{x_{x}}}",
        "y=2x e=0",
        r"\log_{0}{5}",
        r"\log_1 5",
        r"\sqrt[0]{5}",
        r"\arcsin 10^{9}",
        r"0^{-1}",
        r"\infty^{\infty}",
        "5" + " cm" * 120,
    ],
)
def test_hostile_answers_are_wrong_at_once(text):
    same_symbolically("2", r"\gcd(4,6)")  # what is imported once is not counted
    for gold in ("5", r"\sqrt{2}+x", r"\{1,2,3\}", "[0,1)"):
        began = time.process_time()
        assert not same_answer(gold, text)
        assert verdict(rf"\boxed{{{text}}}" + text, gold, extract="flexible")["score"] == 0
        assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "text", [r"\boxed{" * 50_000, r"\boxed{" * 50_000 + "}" * 50_000, r"\boxed{}" * 50_000, r"\boxed{5}, " * 50_000]
)
def test_boxes_without_number_take_linear_time(text):
    began = time.process_time()
    assert verdict(text, "5")["score"] == 0
    assert time.process_time() - began < 1


def test_what_our_reader_leaves_open_goes_to_math_verify():
    assert same_answer("2", r"\gcd(4,6)")
    assert not same_answer("3", r"\gcd(4,6)")
    with pytest.raises(Unreadable):
        expression(r"\gcd(4,6)")


def test_the_rule_is_loaded_without_sympy_and_torch():
    code = (
        "import sys; from verl_core.rewards import math; math.compute_score('', r'\\boxed{1/2}', '0.5');"
        "print(sorted({'sympy', 'torch', 'transformers', 'math_verify'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(st.fractions(-1000, 1000, max_denominator=999), st.fractions(-1000, 1000, max_denominator=999))
def test_a_fraction_is_itself_in_every_spelling_and_no_other(value, other):
    above, below = value.numerator, value.denominator
    sign, whole, rest = "-" if above < 0 else "", abs(above) // below, abs(above) % below
    spellings = [
        rf"\frac{{{above}}}{{{below}}}",
        f"{above}/{below}",
        rf"{sign}\dfrac{{{2 * abs(above)}}}{{{2 * below}}}",
        rf"x = {above} \div {below}",
        f"{above}/{below}".replace("-", "\N{MINUS SIGN}"),
        f"{above * 100}/{below}\\%",
    ]
    if whole and rest:
        spellings.append(rf"{sign}{whole}\frac{{{rest}}}{{{below}}}")
    for spelling in spellings:
        assert same_answer(spellings[0], spelling), spelling
    assert same_answer(str(value), str(other)) == (value == other)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_an_integer_is_itself_with_thousands_in_any_way_and_no_other(value, other):
    for grouped in (f"{value:,}", f"{value:_}".replace("_", "{,}"), f"{value:_}".replace("_", r"\,"), f"{value}.0"):
        assert same_answer(str(value), grouped), grouped
    assert same_answer(str(value), f"{other:,}") == (value == other)


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_a_list_has_no_order_and_a_tuple_has(values, random):
    shuffled = random.sample(values, len(values))
    one, two = (", ".join(map(str, order)) for order in (values, shuffled))
    assert same_answer(one, two) and same_answer(rf"\{{{one}\}}", rf"\{{{two}\}}")
    assert same_answer(f"({one})", f"({two})") == (values == shuffled)
    assert not same_answer(one, f"{two}, 100") and not same_answer(f"({one})", rf"\{{{two}\}}")


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_breaks_the_comparison_and_each_is_itself(text, other):
    same_answer(text, other)
    assert verdict(rf"\boxed{{{text}}}" + other, "5")["score"] in (0, 1)
    assert same_answer("x" + text, "x" + text)
