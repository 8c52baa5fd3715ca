"""Tests of a script: true, false, or not decided by what the script says."""

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from verl_core.config.verl_script.arithmetic import calculate
from verl_core.config.verl_script.expansion import Expansions
from verl_core.config.verl_script.text import Text
from verl_core.config.verl_script.variables import LOGIN
from verl_core.config.verl_script.words import value, words

if TYPE_CHECKING:
    from tree_sitter import Node

_NUMBERS = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-lt": int.__lt__,
    "-le": int.__le__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
}
_OPERATORS = {*_NUMBERS, "=", "==", "!=", "<", ">", "=~"}


def decide(node: "Node", expansions: Expansions) -> bool | None:
    """What a condition gives; None when the script does not decide it (commands, files, unknown values)."""
    kind, source = node.type, text_of(node, expansions.source)
    if kind == "test_command" and source.startswith("[["):
        inner = [child for child in node.named_children if child.type != "comment"]
        return _double(inner[0], expansions) if len(inner) == 1 else None
    if kind in ("test_command", "compound_statement") and source.startswith("(("):
        return _arithmetic(source[2:-2], expansions)
    if kind == "test_command":
        return _single(words(source[1:-1], expansions), expansions)
    if kind == "command":
        found = words(source, expansions)
        name = found[0].text if found else ""
        known = {"true": True, ":": True, "false": False}
        if name == "[" and found[-1].text == "]":
            return _single(found[1:-1], expansions)
        return _single(found[1:], expansions) if name == "test" else known.get(name)
    if kind == "negated_command" and node.named_children:
        return _not(decide(node.named_children[0], expansions))
    if kind == "list" and len(node.named_children) == 2:
        left, right = (decide(child, expansions) for child in node.named_children)
        return _both(left, right) if any(child.type == "&&" for child in node.children) else _either(left, right)
    return None


def text_of(node: "Node", source: bytes) -> str:
    """A node's text in the script."""
    return source[node.start_byte : node.end_byte].decode("utf-8", "replace")


def _double(node: "Node", expansions: Expansions) -> bool | None:
    """What stands in `[[ ]]`."""
    operators = {child.type for child in node.children if not child.is_named}
    parts = node.named_children
    if node.type == "parenthesized_expression" and len(parts) == 1:
        return _double(parts[0], expansions)
    if node.type == "binary_expression" and operators & {"&&", "||"} and len(parts) == 2:
        left, right = (_double(part, expansions) for part in parts)
        return _both(left, right) if "&&" in operators else _either(left, right)
    if node.type == "unary_expression" and "!" in operators and parts:
        return _not(_double(parts[-1], expansions))
    source = text_of(node, expansions.source)
    sides = re.fullmatch(r"(.*?)\s+(==|=|!=|=~|<|>|-[a-z]{2})\s+(.*)", source, re.DOTALL)
    if sides:
        first, second = (value(side, expansions) for side in (sides[1], sides[3]))
        pattern = sides[3][:1] not in ("'", '"') and re.search(r"[*?\[\]]", second.text) is not None
        return _compare(first, sides[2], second, expansions, pattern)
    found = re.fullmatch(r"(-[a-z])\s+(.*)", source, re.DOTALL)
    return _unary(found[1], value(found[2], expansions), expansions) if found else _is_full(source, expansions)


def _is_full(source: str, expansions: Expansions) -> bool | None:
    return _unary("-n", value(source, expansions), expansions)


def _single(found: list[Text], expansions: Expansions) -> bool | None:
    """What stands in `[ ]`."""
    texts = [word.text for word in found]
    for operator, combine in (("-o", _either), ("-a", _both)):
        if operator in texts[1:-1] and len(texts) > 3:
            cut = texts.index(operator, 1)
            return combine(_single(found[:cut], expansions), _single(found[cut + 1 :], expansions))
    if len(found) > 1 and texts[0] == "!":
        return _not(_single(found[1:], expansions))
    if len(found) == 3 and texts[1] in _OPERATORS:
        return _compare(found[0], texts[1], found[2], expansions)
    if len(found) == 2:
        return _unary(texts[0], found[1], expansions)
    return _unary("-n", found[0], expansions) if len(found) == 1 else False if not found else None


def _unary(operator: str, word: Text, expansions: Expansions) -> bool | None:
    text = _taken(word, expansions)
    if operator not in ("-z", "-n") or text is None:
        return None
    return (not text) == (operator == "-z")


def _compare(left: Text, operator: str, right: Text, expansions: Expansions, pattern: bool = False) -> bool | None:
    first, second = _taken(left, expansions), _taken(right, expansions)
    if first is None or second is None:
        return None
    if operator in _NUMBERS:
        return _NUMBERS[operator](int(first), int(second)) if _whole(first) and _whole(second) else None
    if operator in ("=", "=="):
        return fnmatchcase(first, second) if pattern else first == second
    if operator == "!=":
        return not (fnmatchcase(first, second) if pattern else first == second)
    return None


def _taken(word: Text, expansions: Expansions) -> str | None:
    """A word's text, with variables that nobody set as empty; None when it is not known."""
    if word.unknown or any(name in LOGIN for name in word.outside):
        return None
    text = word.text
    for name in word.outside:
        expansions.variables.assumed_unset.add(name)
        text = text.replace(f"${{oc.env:{name}}}", "")
    return text


def _arithmetic(source: str, expansions: Expansions) -> bool | None:
    inner = value(source, expansions)
    try:
        return None if inner.unknown or inner.outside else bool(calculate(inner.text, expansions.number_or_text))
    except ValueError:
        return None


def _whole(text: str) -> bool:
    return re.fullmatch(r"\s*-?\d{1,18}\s*", text) is not None


def _not(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict


def _both(left: bool | None, right: bool | None) -> bool | None:
    return False if left is False or right is False else None if left is None or right is None else True


def _either(left: bool | None, right: bool | None) -> bool | None:
    return True if left is True or right is True else None if left is None or right is None else False
