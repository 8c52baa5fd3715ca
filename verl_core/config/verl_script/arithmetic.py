"""Whole-number arithmetic as `$((...))` has it, for expressions without assignments."""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

LARGEST = 2**63
_BINARY: dict[type, Callable[[int, int], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
    ast.Pow: lambda a, b: a**b if 0 <= b < 64 else 2 * LARGEST,
    ast.LShift: lambda a, b: a << b if 0 <= b < 64 else 2 * LARGEST,
    ast.RShift: lambda a, b: a >> b if b >= 0 else 2 * LARGEST,
}
_COMPARE: dict[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def calculate(expression: str, variable: Callable[[str], str]) -> int:
    """The value of an expression; `variable` gives the text of a name.

    Raises ValueError, with a reason, for what is not followed: assignments, octal, division by zero, more than 63 bits.
    """
    source = expression.strip().replace("&&", " and ").replace("||", " or ")
    try:
        return _value(_parsed(source), variable, 0)
    except (SyntaxError, RecursionError, MemoryError, ZeroDivisionError):
        raise ValueError(f"$(({expression.strip()})) is not followed") from None


def _value(node: ast.AST, variable: Callable[[str], str], depth: int) -> int:
    if depth > 50:
        raise ValueError("an expression that goes on without end")

    def of(part: ast.AST) -> int:
        return _value(part, variable, depth + 1)

    result: int | None = None
    if isinstance(node, ast.Constant) and type(node.value) is int:
        result = node.value
    elif isinstance(node, ast.Name):
        text = variable(node.id).strip()
        result = int(text) if re.fullmatch(r"-?(0|[1-9]\d{0,18})", text) else _value(_parsed(text), variable, depth + 1)
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        result = _BINARY[type(node.op)](of(node.left), of(node.right))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd) and not _is_power(node.operand):
        result = -of(node.operand) if isinstance(node.op, ast.USub) else of(node.operand)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        result = int(_COMPARE[type(node.ops[0])](of(node.left), of(node.comparators[0])))
    elif isinstance(node, ast.BoolOp):
        values = [bool(of(part)) for part in node.values]
        result = int(all(values) if isinstance(node.op, ast.And) else any(values))
    if result is None or not -LARGEST <= result < LARGEST:
        raise ValueError("arithmetic that is not followed")
    return result


def _parsed(text: str) -> ast.AST:
    return ast.parse(text or "0", mode="eval").body  # an empty variable is worth 0


def _is_power(node: ast.AST) -> bool:
    """`-2**2` is 4 in the shell and -4 here."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
