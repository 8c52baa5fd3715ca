"""What a model wrote where a library expects Python: read as a syntax tree, of which only data and arithmetic count.
Nothing is evaluated by Python."""

import ast
import operator
from collections.abc import Mapping
from typing import Any

MAX_CHARACTERS = 20_000
MAX_DEPTH = 100
MAX_DIGITS = 50
MAX_EXPONENT = 100

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_FUNCTIONS = (
    *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "sinh", "cosh", "tanh", "asinh"),
    *("acosh", "atanh", "exp", "log", "ln", "sqrt", "Abs", "erf", "Si", "Ci", "Ei"),
)


class NotFormula(ValueError):
    """The text is no formula, or larger than any honest one."""


def literal(text: str) -> Any:
    """Lists, tuples, dicts, texts and numbers, as `ast.literal_eval` has them. Raises NotFormula for all else."""
    try:
        return ast.literal_eval(_bounded(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as e:
        raise NotFormula(f"not a literal: {e}") from e


def integer(text: str) -> int:
    """The value of + - * & | ^ << >> and parentheses on whole numbers, decimal or 0x.. Raises NotFormula."""
    return _worked(_tree(text), lambda name: _refuse(name), int)


def symbolic(text: str, local_dict: Mapping[str, Any] | None = None) -> Any:
    """A formula as a sympy expression, in place of `sympy.parse_expr`, which evaluates what it is given.

    + - * / **, parentheses, numbers, the functions of calculus, pi and E, and symbols; `local_dict` says what names
    stand for. Exponents that are numbers are at most 100. Raises NotFormula for all else.
    """
    import sympy

    names = {"pi": sympy.pi, "E": sympy.E, **(local_dict or {})}
    return _worked(_tree(text), lambda name: names.get(name) or sympy.Symbol(name), sympy.sympify)


def _bounded(text: str) -> str:
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise NotFormula(f"no text of at most {MAX_CHARACTERS} characters")
    return text.strip()


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(_bounded(text), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as e:
        raise NotFormula(f"not a formula: {e}") from e


def _worked(node: ast.expr, named: Any, number: Any, depth: int = 0) -> Any:
    """The value of a node. named: name -> value. number: Python's int or float -> value."""
    if depth > MAX_DEPTH:
        raise NotFormula("nested too deeply")

    def inner(part: ast.expr) -> Any:
        return _worked(part, named, number, depth + 1)

    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            if abs(value) >= 10**MAX_DIGITS:
                raise NotFormula("too large a number")
            return number(value)
        case ast.Name(id=name):
            return named(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -inner(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return inner(operand)
        case ast.BinOp():
            steps = []
            while isinstance(node, ast.BinOp):  # a sum of many terms leans to the left, and is not deep
                steps.append((node.op, node.right))
                node = node.left
            value = inner(node)
            for op, right in reversed(steps):
                value = _operation(op, value, inner(right))
            return value
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            import sympy

            return getattr(sympy, name)(inner(argument))
    raise NotFormula(f"{type(node).__name__} is no part of a formula")


def _operation(op: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(op, ast.Pow):
        return _power(left, right)
    if type(op) not in _OPERATORS:
        raise NotFormula(f"{type(op).__name__} is no part of a formula")
    if isinstance(op, ast.LShift) and right > MAX_EXPONENT:
        raise NotFormula("too large a shift")
    return _OPERATORS[type(op)](left, right)


def _power(base: Any, exponent: Any) -> Any:
    if _is_number(exponent) and not abs(exponent) <= MAX_EXPONENT:
        raise NotFormula("too large an exponent")
    if _is_number(base) and not abs(base) < 10**MAX_DIGITS:
        raise NotFormula("too large a number")
    return base**exponent


def _is_number(value: Any) -> bool:
    return getattr(value, "is_number", True)  # Python's own are, and have no such attribute


def _refuse(name: str) -> Any:
    raise NotFormula(f"{name!r} is no number")
