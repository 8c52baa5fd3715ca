"""What stands in for `eval` and `sympy.parse_expr` where a verifier of reasoning-gym reads an answer."""

import builtins
import time

import pytest
import sympy

from verl_core.rewards.formula import NotFormula, integer, literal, symbolic

x, C = sympy.symbols("x C")


def test_literals_are_read():
    assert literal(" [['Q', '_'], ['_', 1.5]] ") == [["Q", "_"], ["_", 1.5]]
    assert literal("('a', {'b': None})") == ("a", {"b": None})


def test_integers_are_worked_out():
    assert integer("((0x1f & 6) | (8 ^ 3)) + 2 * (1 << 4) - -3 >> 1") == eval(
        "((0x1f & 6) | (8 ^ 3)) + 2*(1 << 4) - -3 >> 1"
    )


FORMULAS = [
    "-34*x**8/15 - 5*x/4 + C",
    "x*sin(3*x)/3 + cos(3*x)/9 + C",
    "exp(2*x)*(x - 1/2)",
    "sqrt(1 - x**2) + x*asin(x)",
    "x**-2",
    "+x",
    "pi*E",
    "log(2*x)*x",
    "8/(3-8/3)",
    "1.5*x",
    "x**x",
    "+".join(f"{i}*x**{i % 100}" for i in range(300)),
    "((x - 1)*x - 2)*x - 3",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_what_sympy_reads(text):
    assert symbolic(text, {"x": x, "C": C}) == sympy.parse_expr(text, local_dict={"x": x, "C": C})


HOSTILE = [
    "__import__('os').system('true')",
    "open('flag', 'w')",
    "().__class__.__bases__[0].__subclasses__()",
    "(lambda: 1)()",
    "[1 for _ in range(10**9)]",
    "x if x else x",
    "x.diff(x)",
    "f'{x}'",
    "(x := 3)",
    "sympify('x')",
    "sin('x')",
    "sin(*x)",
    "sin(x, evaluate=False)",
    "Integral(x, x)",
    "9**9**9",
    "x**1000000",
    "2**(3**50)",
    "9**900",
    "(((9**99)**99)**99)**99",
    "1" * 60,
    "1e400",
    "0x" + "f" * 60,
    "-" * 15000 + "1",
    "(" * 900 + "1" + ")" * 900,
    "1" + "+1" * 50_000,
    "+(1" * 150 + ")" * 150,
    "1 % 2",
    "1 @ 2",
    "1+",
    "x y",
    "3!",
    "\x00",
    "",
    "True",
    "'a'*9",
    "1 << 10000",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_else_is(text, monkeypatch):
    for name in ("eval", "exec"):
        monkeypatch.setattr(builtins, name, lambda *_: pytest.fail("text was evaluated"))
    began = time.process_time()
    for read in (integer, symbolic):
        with pytest.raises((NotFormula, TypeError)):
            read(text)
    assert time.process_time() - began < 2


def test_literals_hold_no_code():
    for text in ("__import__('os')", "[x]", "[f()]", "1+x", "-" * 1500 + "1", "[" * 1500, "'a'*9", "9" * 5000):
        with pytest.raises(NotFormula):
            literal(text)
