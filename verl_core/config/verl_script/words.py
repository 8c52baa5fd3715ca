"""Splits the text of a command into words as the shell does: quotes, escapes, line continuations, expansions."""

import re
from typing import Protocol

from verl_core.config.verl_script.text import Text, joined

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b"}
_REDIRECT = re.compile(r"(?:\d*|&)(?:>>|>&|<&|<<<|>\||>|<)&?[ \t]*")
_PAIRS = {"{": "}", "(": ")"}
_BLANK = " \t\n\r"
_LITERAL = re.compile(r"[^ \t\n\r\\'\"$`{#<>]+")
_QUOTED = re.compile(r"[^\\$`]+")


class Expander(Protocol):
    """Gives the value of what stands after a `$`."""

    def dollar(self, source: str, start: int) -> tuple[list[Text], int]:
        """The value of the expansion at `start` (several texts for an array's elements), and where it ends."""


def words(source: str, expander: Expander) -> list[Text]:
    """The words of a simple command; redirections are dropped."""
    return _Reader(source, expander, split=True).read()


def value(source: str, expander: Expander) -> Text:
    """The one text that an assignment's right side stands for."""
    found = _Reader(source, expander, split=False).read()
    return found[0] if found else Text()


def closing(source: str, start: int) -> int:
    """Where the bracket, quote or backtick at `start` is closed: the position after it. The end if it is not."""
    opener = source[start]
    i = start + 1
    while i < len(source):
        char = source[i]
        if char == "\\" and opener != "'":
            i += 2
            continue
        if char == _PAIRS.get(opener, opener):
            return i + 1
        nested = char in "\"'`" if opener in _PAIRS else char in "`" and opener == '"'
        if nested or (opener in _PAIRS and char in _PAIRS):
            i = closing(source, i)
        elif opener == '"' and char == "$" and source[i + 1 : i + 2] in _PAIRS:
            i = closing(source, i + 1)
        else:
            i += 1
    return len(source)


class _Reader:
    def __init__(self, source: str, expander: Expander, split: bool):
        self.source, self.expander, self.split = source, expander, split
        self.done: list[Text] = []
        self.open: Text | None = None
        """The word being read; None between words."""

    def read(self) -> list[Text]:
        source, i = self.source, 0
        while i < len(source):
            char = source[i]
            at_start = self.split and self.open is None
            if at_start and (redirect := _REDIRECT.match(source, i)):
                i = self._skip_word(redirect.end())
            elif self.split and char in "<>":
                self._close()
            elif self.split and char in _BLANK:
                self._close()
                i += 1
            elif char == "\\":
                if source[i + 1 : i + 2] != "\n":
                    self._add(Text(source[i + 1 : i + 2]))
                i += 2
            elif char == "'":
                end = closing(source, i)
                self._add(Text(source[i + 1 : end - 1]))
                i = end
            elif char == '"':
                end = closing(source, i)
                self._add_all(_double(source[i + 1 : end - 1], self.expander))
                i = end
            elif source.startswith("$'", i):
                end = _end_of_ansi(source, i + 1)
                self._add(_ansi(source[i + 2 : end - 1]))
                i = end
            elif char in "$`":
                found, i = self.expander.dollar(source, i)
                self._add_unquoted(found)
            elif char == "{" and self.split and (braces := _brace_list(source, i)):
                self._add(Text(braces, (f"{braces} makes several words in the shell: quote it",)))
                i += len(braces)
            elif char == "#" and at_start:
                i = source.find("\n", i) if "\n" in source[i:] else len(source)
            else:
                literal = _LITERAL.match(source, i)
                self._add(Text(literal[0] if literal else char))
                i = literal.end() if literal else i + 1
        self._close()
        return self.done

    def _add(self, text: Text) -> None:
        self.open = text if self.open is None else self.open + text

    def _close(self) -> None:
        if self.open is not None:
            self.done.append(self.open)
            self.open = None

    def _add_all(self, texts: list[Text]) -> None:
        """Quoted text; an array's elements are words of their own, the first and last joined to what stands there."""
        texts = texts if self.split or not texts else [joined(texts)]
        for i, text in enumerate(texts):
            if i:
                self._close()
            self._add(text)

    def _add_unquoted(self, texts: list[Text]) -> None:
        """What a bare expansion gives is split into words, but for the right side of an assignment."""
        if not self.split:
            return self._add_all(texts)
        for i, text in enumerate(texts):
            if i:
                self._close()
            if not text.unknown and text.text.startswith(tuple(_BLANK)):
                self._close()
            self._add_all(text.split())
            if not text.unknown and text.text.endswith(tuple(_BLANK)):
                self._close()
        return None

    def _skip_word(self, start: int) -> int:
        """Where the word after a redirection ends."""
        i = start
        while i < len(self.source) and self.source[i] not in _BLANK:
            i = closing(self.source, i) if self.source[i] in "\"'`" else i + 1
        return i


def _double(source: str, expander: Expander) -> list[Text]:
    """What stands between double quotes: one text, or several around `"${array[@]}"`."""
    texts, i = [Text()], 0
    empty_array = False
    while i < len(source):
        char = source[i]
        if char == "\\" and source[i + 1 : i + 2] in ("$", "`", '"', "\\", "\n"):
            texts[-1] += Text("" if source[i + 1] == "\n" else source[i + 1])
            i += 2
        elif char in "$`":
            found, i = expander.dollar(source, i)
            empty_array = empty_array or not found
            if found:
                texts[-1] += found[0]
                texts += found[1:]
        else:
            literal = _QUOTED.match(source, i)
            texts[-1] += Text(literal[0] if literal else char)
            i = literal.end() if literal else i + 1
    return [] if empty_array and texts == [Text()] else texts


def _brace_list(source: str, start: int) -> str | None:
    """`{a,b}` and `{1..3}`, which the shell multiplies; `{a:1}` and `{}` stand for themselves."""
    found = re.match(r"\{[^\s{}]*(?:,|\.\.)[^\s{}]*\}", source[start:])
    return found[0] if found else None


def _end_of_ansi(source: str, start: int) -> int:
    i = start + 1
    while i < len(source) and source[i] != "'":
        i += 2 if source[i] == "\\" else 1
    return min(i + 1, len(source))


def _ansi(source: str) -> Text:
    """What stands between `$'` and `'`."""
    if unread := re.search(r"\\[^ntr\\'\"abe]", source):
        return Text(source, (f"{unread[0]} in $'...' is not followed",))
    return Text(re.sub(r"\\(.)", lambda found: _ESCAPES[found[1]], source))
