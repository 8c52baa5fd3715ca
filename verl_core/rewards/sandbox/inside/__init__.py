"""What runs inside a sandbox, around a program: text that is handed to the interpreter there, with nothing imported but
the standard library. Only `plain` is used on both sides of the border."""

from functools import cache
from importlib.resources import files


@cache
def text(name: str) -> str:
    """The module's text."""
    return files(__package__).joinpath(f"{name}.py").read_text(encoding="utf-8")


def speaker(name: str) -> str:
    """The program that is one end of a conversation in plain data: `answerer` or `asker`."""
    return f"{text('plain')}\n{text(name)}\nmain(encode, decode)\n"
