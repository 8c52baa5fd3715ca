"""Values that follow from others, each with the rule that it follows from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from verl_core.config.catalogue import entry
from verl_core.config.describe import field_at
from verl_core.config.effective import effective
from verl_core.config.schema import RlxConfig
from verl_core.config.typed import MISSING, leaves, plain

_RULE = re.compile(r"\b(?:null|auto|empty)(?: with [^:]*)?: (.*)")


@dataclass(frozen=True)
class Derived:
    """One value that `effective` fills in."""

    key: str
    value: Any
    rule: str
    """The preset that brings it, or the schema's words on what null, auto or empty stands for."""


def derived(config: RlxConfig) -> Iterator[Derived]:
    """Every key whose value was left to rlx, in the schema's order; pools that the shorthand stands for included."""
    asked = dict(leaves(plain(config)))
    preset = entry("algorithm", config.algorithm.name).options or {}
    for key, value in leaves(plain(effective(config))):
        if asked.get(key, MISSING) != value:
            by_preset = key in preset and preset[key] == value
            yield Derived(key, value, f"preset of algorithm.name={config.algorithm.name}" if by_preset else rule(key))


def rule(key: str) -> str:
    """What the schema says null, auto or empty stands for."""
    field = field_at("cluster.pools" if key.startswith("cluster.pools.") else key)
    found = _RULE.search(field.meaning) if field else None
    return found[1].rstrip(".") if found else "derived"
