"""A piece of text out of a script, and what of it is not known."""

from dataclasses import dataclass, replace

from verl_core.config.errors import UserError

LONGEST = 1_000_000  # characters; a script that doubles a variable again and again ends here


@dataclass(frozen=True)
class Text:
    """Text with what could not be followed still in it, as it stands in the script."""

    text: str = ""
    unknown: tuple[str, ...] = ()
    """Why parts of it are not known; empty: all of it is."""
    outside: tuple[str, ...] = ()
    """Variables that the script does not set; they stand in the text as `${oc.env:NAME}`."""

    def __add__(self, other: "Text") -> "Text":
        if len(self.text) + len(other.text) > LONGEST:
            raise UserError(f"a value in the script grows beyond {LONGEST} characters", "shorten the script")
        return Text(self.text + other.text, _both(self.unknown, other.unknown), _both(self.outside, other.outside))

    def with_text(self, text: str) -> "Text":
        """Other text, known as far as this."""
        return replace(self, text=text)

    def doubted(self, reason: str) -> "Text":
        """The same text, not known for this reason as well."""
        return replace(self, unknown=_both(self.unknown, (reason,)))

    def split(self) -> list["Text"]:
        """The words of an unquoted expansion; what is not known stays in one piece."""
        return [self] if self.unknown else [self.with_text(part) for part in self.text.split()]


def joined(parts: list[Text], by: str = " ") -> Text:
    """All parts in one text."""
    whole = Text()
    for i, part in enumerate(parts):
        whole = whole + (Text(by) + part if i else part)
    return whole


def _both(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(first + second))
