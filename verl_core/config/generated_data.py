"""Options of the data sets that `rlx prepare` makes up (`dataset_options` reads them from the command line)."""

from dataclasses import dataclass, field, fields
from typing import Any

from verl_core.config.errors import UserError

MOST_PEOPLE = 8


@dataclass(frozen=True)
class GeneratedOptions:
    """What every generated data set takes."""

    count: int = 10_000
    """Problems for training."""
    test_count: int = 500
    """Problems held out for validation; none of them occurs in training."""
    seed: int = 0
    """The same seed and options give the same problems."""

    def check(self) -> None:
        """Raises UserError for values that do not fit each other."""
        at_least(self, count=1, test_count=1, seed=0)


@dataclass(frozen=True)
class CountdownOptions(GeneratedOptions):
    """How large numbers and target are, and how many numbers there are."""

    min_numbers: int = 3
    """Fewest numbers of a problem."""
    max_numbers: int = 4
    """Most numbers of a problem, at most 10."""
    max_number: int = 99
    """The largest number; the smallest is 1."""
    min_target: int = 10
    """The smallest target."""
    max_target: int = 99
    """The largest target."""

    def check(self) -> None:
        """Raises UserError for values that do not fit each other."""
        super().check()
        at_least(self, min_numbers=2, max_numbers=self.min_numbers, max_number=1, min_target=1)
        at_least(self, max_target=self.min_target)
        at_most(self, max_numbers=10)


@dataclass(frozen=True)
class KnightsAndKnavesOptions(GeneratedOptions):
    """How many people there are, and how involved what they say is."""

    min_people: int = 3
    """Fewest people of a problem."""
    max_people: int = 3
    """Most people of a problem, at most 8: all 2^n ways who could be a knight are looked at."""
    depth: int = 2
    """Nesting of what is said: 1 says of one person what they are, 2 joins two such claims, and so on."""

    def check(self) -> None:
        """Raises UserError for values that do not fit each other."""
        super().check()
        at_least(self, min_people=2, max_people=self.min_people, depth=1)
        at_most(self, max_people=MOST_PEOPLE, depth=4)


@dataclass(frozen=True)
class ReasoningGymOptions(GeneratedOptions):
    """A task of reasoning-gym; it takes its own settings by `--set`."""

    count: int = 2_000
    test_count: int = 200
    set: dict[str, Any] = field(default_factory=dict)
    """The task's own settings: --set max_numbers=5,max_target=500."""


def at_least(options: Any, **bounds: int) -> None:
    """Raises UserError for the first option below its bound."""
    for name, bound in bounds.items():
        if getattr(options, name) < bound:
            raise UserError(f"{flag(name)} is {getattr(options, name)}, below {bound}", f"{flag(name)} {bound}")


def at_most(options: Any, **bounds: int) -> None:
    """Raises UserError for the first option above its bound."""
    for name, bound in bounds.items():
        if getattr(options, name) > bound:
            raise UserError(f"{flag(name)} is {getattr(options, name)}, above {bound}", f"{flag(name)} {bound}")


def flag(name: str) -> str:
    """A field as it stands on the command line."""
    return "--" + name.replace("_", "-")


def changed(options: Any) -> list[str]:
    """The options that are not at their default, as flags."""
    default = type(options)()
    return [flag(f.name) for f in fields(options) if getattr(options, f.name) != getattr(default, f.name)]
