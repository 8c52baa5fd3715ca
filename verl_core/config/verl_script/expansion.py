"""What `$NAME`, `${NAME...}`, `$((...))` and `$(...)` stand for."""

import re
from fnmatch import fnmatchcase

from verl_core.config.verl_script.arithmetic import calculate
from verl_core.config.verl_script.text import Text, joined
from verl_core.config.verl_script.variables import LOGIN, Variables
from verl_core.config.verl_script.words import closing, value

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9]|[@*#?$!-]")
_BRACED = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_DEFAULT = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
_SLICE = re.compile(r":\s*(-?\d+|\(-\d+\)| -\d+)(?::(\d+))?")
_GLOB = re.compile(r"[*?\[\\]")


class Expansions:
    """Expands against some variables, and sets those that `${NAME:=default}` sets."""

    def __init__(self, variables: Variables):
        self.variables = variables
        self.source = b""
        """The script that is being followed."""

    def dollar(self, source: str, start: int) -> tuple[list[Text], int]:
        """The value of the expansion at `start` (several texts for an array's elements), and where it ends."""
        if source[start] == "`":
            end = closing(source, start)
            return [self._not_run(source[start:end])], end
        after = source[start + 1 : start + 2]
        if source.startswith("$((", start) and source[closing(source, start + 1) - 2 :].startswith("))"):
            end = closing(source, start + 1)
            return [self._arithmetic(source[start:end])], end
        if after == "(":
            end = closing(source, start + 1)
            return [self._not_run(source[start:end])], end
        if after == "{":
            end = closing(source, start + 1)
            return self._braced(source[start + 2 : end - 1], source[start:end]), end
        if found := _NAME.match(source, start + 1):
            return self._plain(found[0]), found.end()
        return [Text("$")], start + 1

    def number_or_text(self, name: str) -> str:
        """A variable's text for arithmetic. Raises ValueError when it is not known."""
        found = self.variables.get(name)
        text = found[0] if isinstance(found, list) and found else found
        if isinstance(text, Text) and not text.unknown and not text.outside:
            return text.text
        if isinstance(text, Text):
            raise ValueError(", ".join([*text.unknown, *(f"{name} is not set here" for name in text.outside)]))
        raise ValueError(f"{name} is not set in the script")

    def _not_run(self, source: str) -> Text:
        return Text(source, (f"{_short(source)} is a command, and the script is not run",))

    def _arithmetic(self, source: str) -> Text:
        inner = value(re.sub(r"(?<![\w$])'|\"", "", source[3:-2]), self)
        if inner.unknown or inner.outside:
            why = inner.unknown or tuple(f"{name} is not set in the script" for name in inner.outside)
            return Text(source, why)
        try:
            return Text(str(calculate(inner.text, self.number_or_text)))
        except ValueError as error:
            return Text(source, (str(error),))

    def _plain(self, name: str) -> list[Text]:
        if name in ("@", "*"):
            return self.variables.items("@")
        found = self.variables.get(name)
        if isinstance(found, list):
            return found[:1] or [Text()]
        return [found if found is not None else self._outside(name)]

    def _outside(self, name: str) -> Text:
        """A variable that nobody set: its place in the file is the environment variable itself."""
        if re.fullmatch(r"[A-Za-z_]\w*", name) and name != "RANDOM":
            return Text(f"${{oc.env:{name}}}", outside=(name,))
        why = (
            f"${name} comes from outside: give it with --set {name}=VALUE" if name.isdigit() else f"${name} is unknown"
        )
        return Text(f"${name}", (why,))

    def _braced(self, inner: str, source: str) -> list[Text]:
        read = _BRACED.fullmatch(inner)
        if not read:
            return [Text(source, (f"{_short(source)} is not followed",))]
        mark, name, index, rest = read.groups()
        if isinstance(held := self.variables.get(name), Text) and held.unknown:
            return [held]
        every = index in ("@", "*") or name in ("@", "*")
        if mark == "!" or (mark == "#" and rest) or (index and not every and not index.isdigit()):
            return [Text(source, (f"{_short(source)} is not followed",))]
        found = self._items(name, index) if every or index else None
        if mark == "#":
            return [self._length(name, found, every, source)]
        if found is None:
            return [self._scalar(name, rest, source)]
        if rest and (cut := _SLICE.fullmatch(rest)):
            first, length = int(cut[1].strip("() ")), cut[2]
            found = found[first:][: int(length) if length else None]
        elif rest and (default := _DEFAULT.fullmatch(rest)):
            if not found and default[2] in "-=":
                return [value(default[3], self)]
            found = [value(default[3], self)] if default[2] == "+" and found else [] if default[2] == "+" else found
        elif rest:
            return [Text(source, (f"{_short(source)} is not followed",))]
        return [joined(found)] if index == "*" or name == "*" else found

    def _items(self, name: str, index: str | None) -> list[Text]:
        items = self.variables.items("@" if name in ("@", "*") else name)
        return items if not index or not index.isdigit() else items[int(index) : int(index) + 1] or [Text()]

    def _length(self, name: str, found: list[Text] | None, every: bool, source: str) -> Text:
        if found is not None and every:
            doubted = tuple(why for item in found for why in item.unknown)
            return Text(str(len(found)), doubted)
        text = self._plain(name)[0]
        known = not text.unknown and not text.outside
        return Text(str(len(text.text))) if known else Text(source, (f"{_short(source)} is not known",))

    def _scalar(self, name: str, rest: str, source: str) -> Text:
        found = self.variables.get(name)
        text = found[0] if isinstance(found, list) and found else Text() if isinstance(found, list) else found
        if default := _DEFAULT.fullmatch(rest):
            return self._default(name, text, *default.groups())
        text = text if text is not None else self._outside(name)
        if not rest:
            return text
        if text.unknown or text.outside:
            why = text.unknown or (f"{name} is not set in the script: give it with --set {name}=VALUE",)
            return Text(source, why)
        changed = _changed(text.text, rest)
        return Text(source, (f"{_short(source)} is not followed",)) if changed is None else text.with_text(changed)

    def _default(self, name: str, text: Text | None, colon: str, sign: str, other: str) -> Text:
        """`${NAME:-other}` and its kin."""
        if text is None and name in LOGIN:
            return Text() + (value(other, self) if sign == "+" else self._outside(name))
        if text is None:
            self.variables.assumed_unset.add(name)
        missing = text is None or (bool(colon) and not text.text and not text.unknown)
        if sign == "+":
            return Text() if missing else value(other, self)
        if not missing and text is not None:
            return text
        if sign == "?":
            return Text(f"${{{name}}}", (f"{name} must come from outside: give it with --set {name}=VALUE",))
        new = value(other, self)
        if sign == "=":
            self.variables.set(name, new)
        return new


def _changed(text: str, rest: str) -> str | None:
    """`##`, `#`, `%%`, `%` cut a pattern off, `/` replaces plain text, `:` cuts out, `^^` and `,,` change case."""
    if rest in ("^^", ",,"):
        return text.upper() if rest == "^^" else text.lower()
    if cut := _SLICE.fullmatch(rest):
        part = text[int(cut[1].strip("() ")) :]
        return part[: int(cut[2])] if cut[2] else part
    if found := re.fullmatch(r"(##?|%%?)(.*)", rest, re.DOTALL):
        return None if re.search(r"[$\"'\\]", found[2]) or len(text) > 10_000 else _without(text, found[1], found[2])
    if found := re.fullmatch(r"(//?)([^/]+)/?(.*)", rest, re.DOTALL):
        if _GLOB.search(found[2]) or re.search(r"[$\"'&#%]", found[2][:1] + found[3]) or "$" in found[2]:
            return None
        return text.replace(found[2], found[3], -1 if found[1] == "//" else 1)
    return None


def _without(text: str, sign: str, pattern: str) -> str:
    """Text without the shortest or longest start or end that fits a pattern."""
    cuts = range(len(text) + 1)
    if sign[0] == "#":
        fits = [text[cut:] for cut in cuts if fnmatchcase(text[:cut], pattern)]
    else:
        fits = [text[:cut] for cut in reversed(cuts) if fnmatchcase(text[cut:], pattern)]
    return text if not fits else fits[-1] if len(sign) == 2 else fits[0]


def _short(source: str) -> str:
    line = " ".join(source.split())
    return line if len(line) <= 60 else line[:57] + "..."
