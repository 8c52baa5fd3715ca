r"""Reads one algebraic expression, in LaTeX or plain text, into a tree of tuples. Nothing is evaluated, let alone run.

The tree: ("num", Fraction, decimals written), ("var", name), ("const", "pi" | "e" | "i" | "inf"),
("sum", [..]), ("product", [..]), ("power", base, exponent), ("root", radicand, degree) and ("call", name, argument..).
"""

import re
from fractions import Fraction
from typing import Any

Tree = tuple[Any, ...]

LONGEST = 400  # characters; a longer answer is compared as text only
DEEPEST = 40  # levels of nesting

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<mixed>\d+[ ]\d+/\d+(?![\d.]))
    | (?P<number>\d+(?:\.\d+)?[eE][-+]?\d{1,3}(?![\d.])
        |(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d{1,3}(?:[ ]\d{3})+(?!\d))(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)
    | (?P<word>\\?(?:arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|lg|exp|sqrt|infinity|infty|pi)
        (?![a-zA-Z]))
    | \\text\s?\{\s?(?P<upright>[a-zA-Z])\s?\}
    | (?P<command>\\(?:[a-zA-Z]+|[{}|]))
    | (?P<letter>[a-zA-Z](?:_(?:\{\s?\w{1,9}\s?\}|\w))?)
    | (?P<mark>[-+*/^_!%(){}\[\]|])
    )""",
    re.VERBOSE,
)
_SPLITTABLE = re.compile(r"\d+")
_FUNCTIONS = frozenset(
    ("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "lg", "exp")
)
_CONSTANTS = {"pi": "pi", "infty": "inf", "infinity": "inf"}
_GREEK = re.compile(
    "alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|(?:var)?phi|chi|psi"
    "|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell"
)
_TIMES = ("\\cdot", "\\times", "*")
_CLOSING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
_STARTS = frozenset(("(", "[", "{", "\\frac", "\\binom", "\\lfloor", "\\lceil"))
DEGREE_IN_RADIANS: Tree = ("product", [("const", "pi"), ("num", Fraction(1, 180), 0)])


class Unreadable(ValueError):
    """The text is no expression that this reader knows."""


def expression(text: str) -> Tree:
    """The tree of a unified text (text.unified). Raises Unreadable."""
    if len(text) > LONGEST:
        raise Unreadable(f"longer than {LONGEST} characters")
    reader = _Reader(_tokens(text))
    tree = reader.sum()
    if reader.left():
        raise Unreadable("something follows the expression")
    return tree


def number(digits: str) -> Tree:
    """The leaf of a decimal literal, its value exact."""
    digits = digits.replace(",", "").replace(" ", "").rstrip(".")
    decimals = len(digits.partition(".")[2]) if digits.replace(".", "").isdecimal() else 0
    return ("num", Fraction(digits if digits[0] != "." else "0" + digits), decimals)


def negative(tree: Tree) -> Tree:
    return ("product", [("num", Fraction(-1), 0), tree])


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            raise Unreadable(f"{text[position]!r} is no part of an expression")
        tokens.append((found.lastgroup, found[found.lastgroup]))
        position = found.end()
    return tokens


class _Reader:
    """Recursive descent over tokens: sum > product (also by juxtaposition) > sign > power > postfix > primary."""

    def __init__(self, tokens: list[tuple[str, str]]):
        self._tokens, self._at, self._depth = tokens, 0, 0

    def left(self) -> bool:
        return self._at < len(self._tokens)

    def sum(self) -> Tree:
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unreadable(f"nested deeper than {DEEPEST} levels")
        terms = [self._product()]
        while self._peek() in ("+", "-"):
            minus = self._next() == "-"
            term = self._product()
            terms.append(negative(term) if minus else term)
        self._depth -= 1
        return terms[0] if len(terms) == 1 else ("sum", terms)

    def _product(self) -> Tree:
        factors = [self._signed()]
        while True:
            mark = self._peek()
            if mark in _TIMES:
                self._next()
                factors.append(self._signed())
            elif mark in ("/", "\\div"):
                self._next()
                factors.append(("power", self._signed(), ("num", Fraction(-1), 0)))
            elif self._starts_factor():
                if self._kind() == "number" and self._tokens[self._at - 1][0] in ("number", "mixed"):
                    raise Unreadable("two numbers side by side")
                factors.append(self._power())
            else:
                return factors[0] if len(factors) == 1 else ("product", factors)

    def _signed(self) -> Tree:
        signs = 0
        while self._peek() in ("+", "-"):
            signs += self._next() == "-"
        tree = self._power()
        return negative(tree) if signs % 2 else tree

    def _power(self) -> Tree:
        base = self._postfix()
        if self._peek() != "^":
            return base
        self._next()
        if self._peek() == "\\circ" or self._tokens[self._at : self._at + 3] == [
            ("mark", "{"), ("command", "\\circ"), ("mark", "}"),
        ]:  # fmt: skip
            self._at += 1 if self._peek() == "\\circ" else 3
            return ("product", [base, DEGREE_IN_RADIANS])
        return ("power", base, self._exponent())

    def _exponent(self) -> Tree:
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unreadable(f"nested deeper than {DEEPEST} levels")
        if self._peek() == "{":
            exponent = self._group()
        else:
            exponent = self._signed()  # x^10, x^-1, and x^y^z from the right
        self._depth -= 1
        return exponent

    def _postfix(self) -> Tree:
        tree = self._primary()
        while (mark := self._peek()) in ("!", "%"):
            self._next()
            tree = ("call", "factorial", tree) if mark == "!" else ("product", [tree, ("num", Fraction(1, 100), 0)])
        return tree

    def _primary(self) -> Tree:
        kind, text = self._kind(), self._next()
        if kind == "number":
            return self._repeating(text) if self._peek() == "\\overline" else self._mixed(number(text))
        if kind == "mixed":
            whole, above, below = (int(part) for part in re.split("[ /]", text))
            if not above < below:
                raise Unreadable(f"{text} is no mixed number")
            return ("num", whole + Fraction(above, below), 0)
        if kind in ("letter", "upright"):
            return ("const", text) if text in ("e", "i") else ("var", text.replace("{", "").replace("}", ""))
        name = text.lstrip("\\")
        if kind == "word":
            return self._word(name)
        if text in _CLOSING:
            return self._bracketed(text)
        if text == "|":
            inner = self.sum()
            self._expect("|")
            return ("call", "abs", inner)
        if name == "frac":
            return ("product", [self._argument(), ("power", self._argument(), ("num", Fraction(-1), 0))])
        if name == "binom":
            return ("call", "binomial", self._argument(), self._argument())
        if kind == "command" and _GREEK.fullmatch(name):
            return ("var", text)
        raise Unreadable(f"{text!r} is no part of an expression")

    def _repeating(self, digits: str) -> Tree:
        """`0.1\\overline{6}`: the digits under the bar go on for ever."""
        self._next()
        period = self._tokens[self._at + 1 : self._at + 2]
        group = self._group()
        if "." not in digits or group[0] != "num" or not period[0][1].isdecimal():
            raise Unreadable("a bar over something else than decimals")
        decimals = len(digits.partition(".")[2])
        return ("num", number(digits)[1] + group[1] / (10 ** len(period[0][1]) - 1) / 10**decimals, 0)

    def _mixed(self, whole: Tree) -> Tree:
        """`2\\frac{1}{2}` is two and a half; `2\\frac{x}{2}` and `2\\frac{3}{2}` are products."""
        start = self._at
        if self._peek() != "\\frac" or whole[1].denominator != 1 or whole[2]:
            return whole
        self._next()
        above, below = self._argument(), self._argument()
        if above[0] == below[0] == "num" and 0 < above[1] < below[1] and above[1].denominator == 1:
            return ("num", whole[1] + above[1] / below[1], 0)
        self._at = start
        return whole

    def _word(self, name: str) -> Tree:
        if name in _CONSTANTS:
            return ("const", _CONSTANTS[name])
        if name == "sqrt":
            degree: Tree = ("num", Fraction(2), 0)
            if self._peek() == "[":
                degree = self._bracketed(self._next())
            return ("root", self._argument(), degree)
        base: Tree | None = None
        exponent: Tree | None = None
        while (mark := self._peek()) == "^" or (mark == "_" and name == "log"):
            self._next()
            if mark == "^":
                exponent = self._argument()
            else:
                base = self._argument()
        if exponent == negative(("num", Fraction(1), 0)):
            name, exponent = f"arc{name}", None  # \sin^{-1} is the inverse function
        argument = self._function_argument()
        if name == "log":
            call: Tree = ("call", "log", argument, base or ("num", Fraction(10), 0))
        elif name in _FUNCTIONS:
            call = ("call", name, argument)
        else:
            raise Unreadable(f"{name} is no function")
        return call if exponent is None else ("power", call, exponent)

    def _function_argument(self) -> Tree:
        """`sin(x)`, `sin{x}`; without brackets all factors up to the next sign or function: `sin 2x`."""
        if self._peek() in ("(", "[", "{"):
            return self._power()
        factors = [self._signed()]
        while self._starts_factor() and self._kind() != "word" and self._peek() != "(":
            factors.append(self._power())
        return factors[0] if len(factors) == 1 else ("product", factors)

    def _argument(self) -> Tree:
        """What TeX takes as an argument: a group, or one token; of a number its first digit (`\\frac12`)."""
        if self._peek() == "{":
            return self._group()
        if self._peek() == "(":
            return self._bracketed(self._next())
        kind, text = self._kind(), self._peek()
        if kind == "number" and len(text) > 1 and _SPLITTABLE.fullmatch(text):
            self._tokens[self._at] = ("number", text[1:])
            return number(text[0])
        return self._primary()

    def _group(self) -> Tree:
        return self._bracketed(self._next())

    def _bracketed(self, opening: str) -> Tree:
        inner = self.sum()
        self._expect(_CLOSING[opening])
        name = opening.lstrip("\\")
        return ("call", name[1:], inner) if name in ("lfloor", "lceil") else inner

    def _starts_factor(self) -> bool:
        text, kind = self._peek(), self._kind()
        if kind == "command" and _GREEK.fullmatch(text[1:]):
            return True
        return kind in ("number", "mixed", "letter", "upright", "word") or text in _STARTS

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self.left() else ""

    def _kind(self) -> str:
        return self._tokens[self._at][0] if self.left() else ""

    def _next(self) -> str:
        if not self.left():
            raise Unreadable("the expression ends too early")
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _expect(self, closing: str) -> None:
        if self._next() != closing:
            raise Unreadable(f"{closing} is missing")
