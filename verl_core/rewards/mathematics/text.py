r"""One spelling for mathematics that is written in many: Unicode, LaTeX's variants, decoration around an answer.

Nothing here decides what an answer means; `\dfrac12`, `½` and `$\frac{1}{2}$` merely become more alike.
"""

import re
import unicodedata
from functools import cache

_SYMBOLS = {
    **dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}\N{EM DASH}\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}", "-"),
    **dict.fromkeys("·⋅∙", r"\cdot "),
    **dict.fromkeys("÷⁄∕", "/"),
    **dict.fromkeys("°º˚", r"^\circ "),
    **dict.fromkeys("′’‘ʹ", "'"),
    **{"×": r"\times ", "π": r"\pi ", "∞": r"\infty ", "±": r"\pm ", "∓": r"\mp ", "≤": r"\le ", "≥": r"\ge "},
    **{"⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in "},
    **{"√": r"\sqrt", "∛": r"\sqrt[3]", "⟨": r"\langle ", "⟩": r"\rangle ", "≈": r"\approx ", "−": "-", "∼": "~"},
    **{"。": ".", "、": ",", "٫": ".", "٬": ",", "٪": "%", "€": "", "£": "", "¥": "", "₹": "", "₽": ""},
}
_LETTERS = ("alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "phi", "omega", "sigma", "rho", "tau")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_ROOT_OF_NUMBER = re.compile(r"√(\d+)")  # √12 is the root of 12, \sqrt12 that of 1
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻₀₁₂₃₄₅₆₇₈₉", "0123456789-0123456789")

_TEXT = r"\textbf \textit \textrm \textnormal \textsf \texttt \mbox \hbox \mathrm \operatorname"
_NOTHING = (
    r"\left \right \middle \big \Big \bigl \bigr \Bigl \Bigr \bigg \Bigg \displaystyle \textstyle \scriptstyle \limits"
    r" \boldsymbol \bm \mathbf \mathit \mathsf \underline \rm \bf \it \! \( \) \[ \] \$ $"
)
_SPACE = r"\quad \qquad \, \; \: \space \thinspace \hspace ~"
_REWRITES = {
    **dict.fromkeys(_TEXT.split(), r"\text"),
    **dict.fromkeys(_NOTHING.split(), ""),
    **dict.fromkeys((*_SPACE.split(), "\\ ", "\\\n"), " "),
    **dict.fromkeys((r"\dfrac", r"\tfrac", r"\cfrac"), r"\frac"),
    **dict.fromkeys((r"\dbinom", r"\tbinom"), r"\binom"),
    **dict.fromkeys((r"\leq", r"\leqslant"), r"\le"),
    **dict.fromkeys((r"\geq", r"\geqslant"), r"\ge"),
    **dict.fromkeys((r"\degree", r"\degrees", r"\textdegree"), r"^\circ"),
    **dict.fromkeys((r"\lvert", r"\rvert", r"\vert", r"\mid"), "|"),
    **{r"\neq": r"\ne", r"\lt": "<", r"\gt": ">", r"\varnothing": r"\emptyset", r"\%": "%", "**": "^"},
    **{r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\div": "/", r"\ast": r"\cdot "},
    **{r"\dots": r"\ldots", r"\cdots": r"\ldots", r"\imath": "i", r"\colon": ":", r"\&": "&"},
}
_REWRITTEN = re.compile(r"\\(?:[a-zA-Z]+|.)|[$~]|\*\*", re.DOTALL)
_THOUSANDS = re.compile(
    r"(?<=\d)(?:\{,\}|,?\\[,;:! ]|,?\\!|[\N{NO-BREAK SPACE}\u202f\u2009])(?=\d{3}(?!\d))"
)  # 1{,}000, 1\,000
_DECIMAL_COMMA = re.compile(r"(?<=\d)\{[,.]\}(?=\d)")  # 3{,}5
_ROW_GAP = re.compile(r"(?<=\\\\)\[[\d.]{1,6}\s?[a-z]{2}\]")  # of a matrix
_UPRIGHT = re.compile(r"\\text\s?\{\s?([-\d.,]*|[ei])\s?\}")
_UPRIGHT_LETTER = re.compile(r"\\text\s?\{\s?([a-zA-Z])\s?\}")
_AROUND = ' \t\r\n*_`"'  # blanks, markup, quotes
_COLOUR = re.compile(r"\\(?:text)?color\s?\{[a-zA-Z]*\}")
_SPACES = re.compile(r"\s+")
_IDLE_BRACES = re.compile(r"(?<=[\^_])\{([a-zA-Z0-9])\}")
_IDLE_SPACE = re.compile(r"(?<![a-zA-Z0-9.]) | (?![a-zA-Z0-9.])")


def unified(text: str) -> str:
    """`text` in the common spelling: ASCII where Unicode has a twin, no LaTeX that only arranges, single spaces, no
    markup or punctuation around it."""
    text = text.strip(_AROUND).rstrip(_AROUND + ".,;:\\")  # the backslash of `5\\,` and of a new line
    if not text.isascii():
        text = _ascii(text)
    if "{" in text or "\\" in text:
        text = _ROW_GAP.sub("", _COLOUR.sub("", text))
        text = _DECIMAL_COMMA.sub(".", _THOUSANDS.sub("", text))
    text = _REWRITTEN.sub(lambda found: _REWRITES.get(found.group(), found.group()), text)
    text = _UPRIGHT.sub(r"\1", _SPACES.sub(" ", text)).strip(" *:").rstrip(" .,;:")
    letter = _UPRIGHT_LETTER.fullmatch(text)
    return letter[1] if letter else text


def tight(text: str) -> str:
    """A unified text without the spaces and braces that mean nothing. `2 1/2`, `5 cm` and `\\pi r` keep theirs."""
    return _IDLE_BRACES.sub(r"\1", _IDLE_SPACE.sub("", text))


def _ascii(text: str) -> str:
    text = _ROOT_OF_NUMBER.sub(r"\\sqrt{\1}", _THOUSANDS.sub("", text))
    text = _RAISED.sub(lambda digits: f"^{{{digits.group().translate(_DIGITS)}}}", text)
    text = _LOWERED.sub(lambda digits: f"_{{{digits.group().translate(_DIGITS)}}}", text)
    return "".join(char if char < "\x80" else _spelled(char) for char in text)


@cache
def _spelled(char: str) -> str:
    """One character beyond ASCII in LaTeX or ASCII; itself where it has no such spelling."""
    if char in _SYMBOLS:
        return _SYMBOLS[char]
    if char.isdecimal():  # of any script
        return str(unicodedata.decimal(char))
    if unicodedata.category(char) == "Cf":  # zero-width characters, marks of direction
        return ""
    name = unicodedata.name(char, "").rpartition(" ")[2].lower()
    if name in _LETTERS and "GREEK SMALL" in unicodedata.name(char):
        return rf"\{name} "
    compatible = unicodedata.normalize("NFKC", char)
    if "⁄" in compatible:  # ½, after a digit the fraction of a mixed number
        return " " + compatible.replace("⁄", "/")
    return "".join(_SYMBOLS.get(c, c) for c in compatible)
