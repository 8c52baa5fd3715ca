"""The last instance: math-verify, for what our own readers leave open. It reads LaTeX by a grammar and never evaluates
text; its entry `parse` is not used, because that hands plain text to sympy's parse_expr, which does.
"""

import logging
import re
from functools import lru_cache
from typing import Any

LONGEST = 100  # characters: the grammar's reader is slow, and what is right is seldom long

_WORDS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")
_NOT_ONE_VALUE = re.compile(r"\d \d|[=<>]")
# sympy simplifies nests of other functions for minutes.
_COMMAND = re.compile(r"\\(?!(?:gcd|lcm|min|max|frac|sqrt|cdot|times|pi|alpha|beta|theta)(?![a-zA-Z]))[a-zA-Z]+")
_LARGE = re.compile(r"!|\d{16,}|\^\s?(?:\{[^{}]*[\^a-zA-Z]|\{?\s?-?\d{3,})|\^[^{]*\^")


def same_symbolically(gold: str, answer: str) -> bool:
    """math-verify's verdict on two unified texts. False without asking it where either holds words, relations or what
    could keep sympy busy (functions of functions, factorials, large powers), and where it cannot read one."""
    refused = (_WORDS, _NOT_ONE_VALUE, _COMMAND, _LARGE)
    if any(len(text) > LONGEST or any(sign.search(text) for sign in refused) for text in (gold, answer)):
        return False
    wanted, given = _parsed(gold), _parsed(answer)
    if wanted is None or given is None:
        return False
    from math_verify import verify

    return bool(verify(wanted, given, timeout_seconds=None))  # the pool limits every answer's time


def warm_up() -> None:
    """Imports sympy and math-verify (half a second), so that no answer pays for it."""
    import math_verify

    logging.getLogger(math_verify.__name__).setLevel(logging.ERROR)  # it warns that its own time limit is off


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    """sympy's object, None where the grammar does not read the text."""
    warm_up()
    from latex2sympy2_extended import latex2sympy
    from math_verify.grader import should_treat_as_complex

    try:
        return latex2sympy(
            text, is_real=not should_treat_as_complex(text), convert_degrees=False, normalization_config=None
        )
    except Exception:  # the grammar's reader and sympy raise whatever they like on text that is no mathematics
        return None
