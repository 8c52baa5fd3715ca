"""What runs inside a sandbox, around a program: text that is handed to the interpreter there, never imported beside the
training code, but for `plain`, which both sides read and write."""

from functools import cache
from importlib.resources import files


@cache
def source(*names: str) -> str:
    """The text of these modules, one after another."""
    return "\n".join(files(__package__).joinpath(f"{name}.py").read_text(encoding="utf-8") for name in names)
