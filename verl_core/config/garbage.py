"""How often a process of rlx looks for garbage. Importing torch and transformers makes half a million objects that
stay: looking through them at Python's usual rate takes a second of every start, and half a second of every end."""

import gc

_USUAL = gc.get_threshold()
_SELDOM = 20_000
"""New containers between two looks (gc.set_threshold)."""


def look_seldom() -> None:
    """While packages are imported."""
    gc.set_threshold(_SELDOM)


def look_as_usual() -> None:
    """From here on, before a model is made, so that cycles with its memory are found as soon as ever; what has been
    imported is not looked at again."""
    gc.freeze()
    gc.set_threshold(*_USUAL)


def look_no_more() -> None:
    """At the end: what is there now goes with the process."""
    gc.disable()
    gc.freeze()
