"""What cannot be right, and what has no effect, found before anything starts."""

from dataclasses import dataclass, field

from verl_core.config.schema import RlxConfig


@dataclass
class Report:
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def check(config: RlxConfig, set_keys: set[str]) -> Report:
    return Report()
