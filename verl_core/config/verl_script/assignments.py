"""`NAME=value`, `NAME+=value`, `NAME=(a b)`, and the same behind export, declare, local, readonly."""

import re
from collections.abc import Iterator

from verl_core.config.verl_script.expansion import Expansions
from verl_core.config.verl_script.text import Text
from verl_core.config.verl_script.variables import Variables
from verl_core.config.verl_script.words import closing, value, words

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
_DECLARATION = re.compile(r"(export|declare|typeset|local|readonly)\b")
_ONE = re.compile(r"(?:[^\s'\"\\$`(]|\\.)+", re.DOTALL)


def is_assignment(source: str) -> bool:
    """Whether a command does nothing but set variables (tree-sitter takes some of those for commands)."""
    return all(_ASSIGNMENT.match(part) for part in _parts(source)) and bool(source.strip())


def assign(source: str, variables: Variables, expansions: Expansions) -> Iterator[tuple[str, Text]]:
    """Sets the variables that a statement sets; gives (name, value) of those that go into the environment."""
    declared = _DECLARATION.match(source)
    exported = declared is not None and declared[1] == "export"
    options: list[str] = []
    for part in _parts(source[declared.end() :] if declared else source):
        found = _ASSIGNMENT.match(part)
        if not found:
            options.append(part)
            if exported and isinstance(held := variables.get(part), Text):
                yield part, held
            continue
        name, index, plus = found.groups()
        right = part[found.end() :]
        if index or "-A" in options:
            variables.doubt(name, f"{name} is set item by item, which is not followed")
        elif right.startswith("("):
            variables.set(name, words(right[1:-1], expansions), append=bool(plus))
        else:
            text = value(right, expansions)
            variables.set(name, text, append=bool(plus))
            if exported:
                yield name, text


def _parts(source: str) -> list[str]:
    """The words of a statement as they stand in the script; an array is one word."""
    parts: list[str] = []
    i, start = 0, None
    while i < len(source):
        char = source[i]
        if char in " \t\n" or source.startswith("\\\n", i):
            if start is not None and char != "\\":
                parts.append(source[start:i])
                start = None
            i += 2 if char == "\\" else 1
            continue
        if char == "#" and start is None:
            i = source.find("\n", i) if "\n" in source[i:] else len(source)
            continue
        start = i if start is None else start
        if char in "'\"`(":
            i = closing(source, i)
        elif char == "$" and source[i + 1 : i + 2] in ("{", "("):
            i = closing(source, i + 1)
        else:
            plain = _ONE.match(source, i)
            i = plain.end() if plain else i + 1
    return [*parts, *([source[start:]] if start is not None else [])]
