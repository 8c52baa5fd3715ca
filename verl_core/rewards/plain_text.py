"""One spelling for texts that say the same: case, punctuation, blanks, articles and Unicode's variants set aside.

It is the normalisation of SQuAD's evaluation (Rajpurkar et al. 2016, arXiv 1606.05250), with two differences. Unicode:
compatibility forms are unified (NFKC), all of its punctuation counts, and invisible characters vanish. Numbers: a minus
sign before a digit and the point between digits stay, so that -5 is not 5 and 1.5 is not 15.
"""

import re
import unicodedata

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_MINUS = re.compile(r"(?<![\w.)])[-\N{MINUS SIGN}\N{HYPHEN}\N{EN DASH}](?=\.?\d)")
_POINT = re.compile(r"(?<=\d)\.(?=\d)|(?<!\w)\.(?=\d)")
_MARKS = str.maketrans("\x00\x01", "-.")  # what stands for a minus and a point while punctuation is removed


class _Without(dict[int, int | None]):
    """A table for str.translate without the characters of some Unicode categories, made up as characters turn up."""

    def __init__(self, categories: tuple[str, ...], removed: str = "", kept: str = ""):
        super().__init__(dict.fromkeys(map(ord, removed)) | {ord(c): ord(c) for c in kept})
        self._categories = categories

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code)).startswith(self._categories) else code
        return self[code]


_VISIBLE = _Without(("Cc", "Cf"), kept="\t\n\v\f\r\x1c\x1d\x1e\x1f\x85")  # controls, zero width, writing direction
_WORDS = _Without(("P",), removed="$+<=>^`|~")  # with the symbols that ASCII counts among its punctuation


def normalised(text: str, articles: bool = False) -> str:
    """The spelling to compare; empty only for a text with nothing visible in it. `articles`: keep a, an and the.

    What would lose everything (the answer "A", or "?!") keeps what it has.
    """
    folded = unicodedata.normalize("NFKC", text.translate(_VISIBLE)).casefold()
    marked = _POINT.sub("\x01", _MINUS.sub("\x00", folded))
    bare = " ".join(marked.translate(_WORDS).translate(_MARKS).split())
    without = bare if articles else " ".join(_ARTICLE.sub(" ", bare).split())
    return without or bare or " ".join(folded.split())
