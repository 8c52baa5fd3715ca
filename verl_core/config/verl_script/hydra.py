"""Hydra's words: `key=value` with its signs, its values, and the options before them."""

import re
from dataclasses import dataclass
from typing import Any

from verl_core.config.verl_script.text import Text

_KEY = re.compile(r"(\+\+|\+|~)?([A-Za-z_$][\w./@:-]*)(?:=(.*))?", re.DOTALL)
_OPTION = re.compile(r"(--config-path|-cp|--config-name|-cn|--config-dir|-cd|--cfg|-c|--package|-p)(?:=(.*))?")
_INT = re.compile(r"[+-]?(?:0|[1-9](?:_?\d)*)")
_DIGITS = r"\d(?:_?\d)*"
_POINT = rf"(?:{_DIGITS})?\.{_DIGITS}|{_DIGITS}\."
_FLOAT = re.compile(rf"[+-]?(?:{_POINT}|(?:{_POINT}|{_DIGITS})[eE][+-]?{_DIGITS}|inf|nan)", re.IGNORECASE)
_WORDS = {"null": None, "true": True, "false": False}
DEEPEST = 50
LONGEST_NUMBER = 4000
"""Digits; Python reads no more than 4300."""


@dataclass
class Word:
    """One override."""

    key: str
    sign: str
    """`+`, `++`, `~`, or nothing."""
    value: Any
    text: Text
    """As the launch has it, behind the `=`."""
    problem: str = ""
    """Why the value could not be read; empty when it could."""


@dataclass
class Words:
    overrides: list[Word]
    config_name: str | None
    config_path: Text | None
    strange: list[Text]
    """Words that are neither options nor overrides."""


def read_words(arguments: list[Text]) -> Words:
    """The options and overrides among the words behind a launch's module."""
    found = Words([], None, None, [])
    rest = iter(arguments)
    for word in rest:
        if option := _OPTION.fullmatch(word.text):
            given = word.with_text(option[2]) if option[2] is not None else next(rest, Text())
            if option[1] in ("--config-name", "-cn"):
                found.config_name = re.sub(r"\.ya?ml$", "", given.text)
            elif option[1] in ("--config-path", "-cp"):
                found.config_path = given
        elif read := _KEY.fullmatch(word.text):
            sign, key, text = read.groups()
            found.overrides.append(_override(sign or "", key, text, word))
        else:
            found.strange.append(word)
    return found


def _override(sign: str, key: str, text: str | None, word: Text) -> Word:
    if text is None:
        return Word(key, sign, None, word.with_text(""), "" if sign == "~" else "no value behind it")
    try:
        return Word(key, sign, read_value(text), word.with_text(text))
    except ValueError as error:
        return Word(key, sign, None, word.with_text(text), str(error))


def read_value(text: str) -> Any:
    """The plain value of an override's right side: nothing is text, `null`, `[a,b]`, `{a:1}`, quoted and bare words.

    Raises ValueError for what Hydra would refuse, for a sweep (`a,b`), and for an endless number.
    """
    reader = _Values(text)
    value = reader.value(end="")
    if reader.i < len(text):
        raise ValueError("a sweep of several values" if text[reader.i] == "," else f"not a value: {text}")
    return value


class _Values:
    def __init__(self, text: str):
        self.text, self.i = text, 0

    def value(self, end: str, depth: int = 0) -> Any:
        if depth > DEEPEST:
            raise ValueError("a value nested too deeply")
        self.blanks()
        char = self.text[self.i : self.i + 1]
        if char == "[":
            return self.list(depth)
        if char == "{":
            return self.mapping(depth)
        if char in ("'", '"') and char:
            quoted = self.quoted()
            self.blanks()
            return quoted
        return self.bare(end)

    def list(self, depth: int) -> list[Any]:
        self.i += 1
        items: list[Any] = []
        while not self.closes("]", first=not items):
            items.append(self.value(",]", depth + 1))
            if items[-1] == "" and self.text[self.i - 1] not in "'\"":
                raise ValueError(f"an item is missing: {self.text}")
        return items

    def mapping(self, depth: int) -> dict[str, Any]:
        self.i += 1
        items: dict[str, Any] = {}
        while not self.closes("}", first=not items):
            key = self.value(":", depth + 1)
            if isinstance(key, list | dict) or self.text[self.i : self.i + 1] != ":":
                raise ValueError(f"not a mapping: {self.text}")
            self.i += 1
            items[key if isinstance(key, str) else str(key)] = self.value(",}", depth + 1)
        return items

    def closes(self, bracket: str, first: bool) -> bool:
        """Whether the bracket comes; steps over it, or over the comma before the next item."""
        self.blanks()
        char = self.text[self.i : self.i + 1]
        if char == bracket:
            self.i += 1
            self.blanks()
            return True
        if not char or (char != "," and not first):
            raise ValueError(f"a {bracket} is missing: {self.text}")
        self.i += 0 if first else 1
        return False

    def quoted(self) -> str:
        quote, start = self.text[self.i], self.i + 1
        i = start
        while i < len(self.text) and self.text[i] != quote:
            i += 2 if self.text[i] == "\\" else 1
        if i >= len(self.text):
            raise ValueError(f"a quote is not closed: {self.text}")
        self.i = i + 1
        return re.sub(r"\\(['\"])", r"\1", self.text[start:i])

    def bare(self, end: str) -> Any:
        """A bare word up to one of `end` (at the top: up to a comma), with interpolations kept whole."""
        stops = end or ","
        start, i = self.i, self.i
        while i < len(self.text) and self.text[i] not in stops:
            if self.text.startswith("${", i):
                i = self._after_interpolation(i)
            elif self.text[i] == "(" and (close := self.text.find(")", i)) > 0:
                i = close + 1  # choice(a,b) and its kin stay whole
            else:
                i += 2 if self.text[i] == "\\" else 1
        self.i = min(i, len(self.text))
        return scalar(re.sub(r"\\([\\,:=()\[\]{} \t])", r"\1", self.text[start : self.i].strip()))

    def blanks(self) -> None:
        while self.text[self.i : self.i + 1] in (" ", "\t", "\n"):
            self.i += 1

    def _after_interpolation(self, i: int) -> int:
        depth = 0
        while i < len(self.text):
            depth += self.text.startswith("${", i)
            depth -= self.text[i] == "}"
            i += 1
            if not depth:
                break
        return i


def scalar(text: str) -> Any:
    """A bare word as null, a boolean, a number or text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        if len(text) > LONGEST_NUMBER:
            raise ValueError(f"a number of {len(text)} digits")
        return int(text)
    return float(text.replace("_", "")) if _FLOAT.fullmatch(text) else text
