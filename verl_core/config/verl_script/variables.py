"""The variables of a script while it is followed, and what two branches leave of them."""

from collections.abc import Mapping

from verl_core.config.verl_script.text import Text

Value = Text | list[Text]
LOGIN = frozenset({"HOME", "USER", "LOGNAME", "PATH", "PWD", "HOSTNAME", "SHELL", "TMPDIR", "LANG", "TERM", "RANDOM"})
"""Variables that every shell has, whose values only the machine knows."""


class Variables:
    """Names to values; those given from outside are there from the start."""

    def __init__(self, given: Mapping[str, str] | None = None):
        self.values: dict[str, Value] = {name: Text(value) for name, value in (given or {}).items()}
        self.assumed_unset: set[str] = set()
        """Names that a test or a default asked for and nobody set."""

    def copy(self) -> "Variables":
        """The same names and values, to be changed alone."""
        other = Variables()
        other.values = {name: list(value) if isinstance(value, list) else value for name, value in self.values.items()}
        other.assumed_unset = self.assumed_unset
        return other

    def get(self, name: str) -> Value | None:
        """A variable's value; None when nobody set it."""
        return self.values.get(name)

    def items(self, name: str) -> list[Text]:
        """All elements of an array; a plain variable has one."""
        value = self.values.get(name)
        return [] if value is None else value if isinstance(value, list) else [value]

    def set(self, name: str, value: Value, append: bool = False) -> None:
        """Sets a variable, or adds to it as `+=` does."""
        old = self.values.get(name)
        if append and old is not None:
            if isinstance(value, list):
                value = [*self.items(name), *value]
            elif isinstance(old, list):
                value = [*([old[0] + value] if old else [value]), *old[1:]]
            else:
                value = old + value
        self.values[name] = value

    def doubt(self, name: str, reason: str) -> None:
        """From here on the variable's value is not known."""
        self.values[name] = Text(f"${{{name}}}", (reason,))

    def unset(self, name: str) -> None:
        """Forgets a variable."""
        self.values.pop(name, None)


def merge(branches: list[Variables], line: int) -> Variables:
    """What holds after a test in this line that could have gone each of these ways (at least one)."""
    merged = branches[0].copy()
    for name in dict.fromkeys(name for branch in branches for name in branch.values):
        found = [branch.values.get(name) for branch in branches]
        if all(value == found[0] for value in found):
            continue
        if all(value is None or isinstance(value, list) for value in found):
            merged.values[name] = _arrays([value if isinstance(value, list) else [] for value in found], line)
        else:
            ways = " or ".join(dict.fromkeys(_shown(value) for value in found))
            merged.doubt(name, f"{name} is {ways}: line {line} tests what the script does not decide")
    return merged


def _arrays(found: list[list[Text]], line: int) -> list[Text]:
    """The elements that all have at the start, then every other one as not decided."""
    same = 0
    while all(same < len(array) and array[same] == found[0][same] for array in found):
        same += 1
    rest = dict.fromkeys(item for array in found for item in array[same:])
    why = f"only on one way of the test in line {line}, which the script does not decide"
    return [*found[0][:same], *(item.doubted(why) for item in rest)]


def _shown(value: Value | None) -> str:
    if value is None:
        return "unset"
    return value.text or "empty" if isinstance(value, Text) else "(" + " ".join(item.text for item in value) + ")"
