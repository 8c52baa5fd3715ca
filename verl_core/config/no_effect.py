"""Keys that somebody set and that change nothing under the chosen options."""

import copy
from collections.abc import Iterator, Mapping, Sequence

from verl_core.config.effective import effective, get
from verl_core.config.idle_rule_kinds import Rule
from verl_core.config.idle_rules import RULES
from verl_core.config.schema import RlxConfig
from verl_core.config.typed import leaf_types


def idle_keys(config: RlxConfig, e: RlxConfig, origins: Mapping[str, str], layers: Sequence[str]) -> Iterator[str]:
    """One warning for each reason and layer: the keys someone set that have no effect, and the switch. `e` is the
    effective configuration.

    Keys at their default, and explicit nulls, ask for nothing. A key of a lower layer that a switch of a higher one
    makes idle is no slip either: `rlx train gsm8k-ppo rollout.engine=hf` means what it says. Nor is a value that would
    hold anyway and stands in one layer with all that decides: whoever wrote both down (as a run's config.yaml does)
    asked for nothing; nor is a section that a layer writes down from its first key to its last. Alone, such a value is
    a slip: who sets a KL coefficient expects a KL term.
    """
    given = [key for key, origin in origins.items() if origin != "default" and _is_set(config, key)]
    rank = {origin: i for i, origin in enumerate(["default", *layers])}
    for rule in RULES:
        if not rule.idle(e):
            continue
        deciders = {origins.get(key, "default") for key in rule.deciders()}
        decided = max(rank[origin] for origin in deciders)
        keys = [key for key in given if rule.covers(key) and rank[origins[key]] >= decided]
        keys = [key for key in keys if deciders != {origins[key]} or not _holds_anyway(config, key, rule)]
        keys = [key for key in keys if not _in_a_whole_section(key, rule, origins)]
        for origin in dict.fromkeys(origins[key] for key in keys):
            own = [key for key in keys if origins[key] == origin]
            verb = "has" if len(own) == 1 else "have"
            yield f"{', '.join(own)} ({origin}) {verb} no effect; for that set {rule.switch}"


def _holds_anyway(config: RlxConfig, key: str, rule: Rule) -> bool:
    """Whether the key would have its value without being set: by the schema's default, or because it is derived."""
    default = RlxConfig()
    try:
        value, usual = get(config, key), get(default, key)
    except AttributeError:  # an item of a free mapping
        return False
    if value == usual or usual is not None:
        return bool(value == usual)
    free = copy.deepcopy(config)
    for name in leaf_types():
        if rule.covers(name) and get(default, name) is None:
            section, _, last = name.rpartition(".")
            setattr(get(free, section), last, None)
    return bool(value == get(effective(free), key))


def _in_a_whole_section(key: str, rule: Rule, origins: Mapping[str, str]) -> bool:
    """Whether the layer that has the key has all of a section of the rule, which has several."""
    sections = [own for own in rule.keys if own.endswith(".") and key.startswith(own)]
    names = [name for name in leaf_types() if name.startswith(tuple(sections))] if sections else []
    return len(names) > 1 and all(origins.get(name) == origins[key] for name in names)


def _is_set(config: RlxConfig, key: str) -> bool:
    try:
        return get(config, key) is not None
    except AttributeError:  # an item of a free mapping
        return True
