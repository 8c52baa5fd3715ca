"""What there is to say about one key: its words in the schema, who set it, what wins, what would give it effect."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from verl_core.config.catalogue import KINDS, Entry, entry
from verl_core.config.compose import Resolved, Setting
from verl_core.config.derived import rule
from verl_core.config.describe import Field, field_at, fields
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.idle_rules import RULES
from verl_core.config.keys import PREFIX, SHARED, translate
from verl_core.config.typed import MISSING, Problem, near_keys, plain, steps
from verl_core.config.unbuilt import only_today
from verl_core.config.verl_keys import RENAMED

OWN = re.compile(
    r"[a-z]+\.pool|[a-z]+\.optim\.(optimizer|muon_\w+|eps)"
    r"|rollout\.(engine|stop|old_log_prob|restarts|stall_s|lora_native)|actor\.positive_lm_coef"
    r"|algorithm\.(name|module|lam_critic|lam_alpha|preference\.\w+|prime\..+)"
    r"|reward\.(timeout_s|scorers|cpu_s|memory_mb|max_queue"
    r"|(overlong_buffer|length_shaping|judge|reward_model)\.\w+)"
    r"|trainer\.(seed|deterministic|num_threads|mode|max_ckpt_to_keep|checkpoint_url|keep_best\.\w+|async_save|log_rollouts|parity\w*)"
)
"""Keys in sections that veRL has too, which are not veRL's names."""


@dataclass(frozen=True)
class Explanation:
    """What holds for a key or section in every configuration."""

    key: str
    field: Field
    verl: tuple[str, ...]
    """veRL's names for it."""
    switches: tuple[str, ...]
    """What must be set for it to have an effect."""
    today: str | None
    """What runs today, where not all of it does."""
    entries: tuple[Entry, ...]
    """The things whose names it takes."""
    inside: tuple[Field, ...]
    """The keys of a section."""


@dataclass(frozen=True)
class Step:
    """One layer's word on a key."""

    origin: str
    value: Any
    item: str = ""
    """The item of the key's list or mapping that is meant, if not all of it."""


@dataclass(frozen=True)
class Here:
    """A key in one configuration."""

    value: Any
    """The value that holds, derived where it was left to rlx; MISSING for an item that is not there."""
    steps: tuple[Step, ...]
    """Everyone who has a say, the last one wins."""
    idle: tuple[str, ...]
    """The switches that would give it effect, where it has none."""


def explain(key: str) -> Explanation:
    """Raises UserError with near keys for one that does not exist, and with what takes its place for a veRL key without
    a counterpart. A key of veRL is explained under its name here."""
    found = field_at(key)
    if found is None:
        target = translate(key, MISSING)
        if isinstance(target, Problem):
            raise UserError(f"{key}: {target.text}", "`rlx config schema` lists the keys that there are")
        key, found = target.path or key, field_at(target.path or key)
    if found is None:
        near = near_keys(key)
        question = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"{key}: no such key{question}", "`rlx config schema` lists all keys")
    kind = KINDS.get(found.key)
    return Explanation(
        key,
        found,
        tuple(_verl_names(found)),
        tuple(dict.fromkeys(each.switch for each in RULES if each.covers(key))),
        only_today(found.key),
        tuple(entry(kind, name) for name in found.choices) if kind else (),
        tuple(field for name, field in fields().items() if found.section and name.startswith(f"{found.key}.")),
    )


def here(key: str, resolved: Resolved) -> Here:
    """A key's value in one configuration, and how it came about. The key exists."""
    e, algorithm = effective(resolved.config), resolved.config.algorithm.name
    preset = (entry("algorithm", algorithm).options or {}).get(key, MISSING)
    by_preset = Step(f"preset of algorithm.name={algorithm}", preset)
    field = field_at(key)
    said = [Step("default", field.default)] if field and field.key.count(".") == key.count(".") else []
    said += [by_preset] if preset is not MISSING else []
    said += [step for setting in resolved.settings for step in _step(setting, key)]
    asked, value = value_at(plain(resolved.config), key), value_at(plain(e), key)
    if value != asked:  # left to rlx
        said = [step for step in said if step != by_preset]
        said.append(by_preset if value == preset else Step(rule(key), value))
    return Here(value, tuple(said), tuple(each.switch for each in RULES if each.covers(key) and each.idle(e)))


def value_at(value: Any, key: str) -> Any:
    """The value at a dotted key of plain values; MISSING where there is none. The empty key is the whole."""
    for step in filter(None, steps(key)):  # a key that begins with a position has an empty first step
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return MISSING
    return value


def _step(setting: Setting, key: str) -> Iterator[Step]:
    """What one setting says about a key: itself, an item of its list or mapping, or the list or mapping it lies in."""
    ends = (".", "[")
    if setting.key == key:
        yield Step(setting.origin, setting.value)
    elif setting.key.startswith(key) and setting.key[len(key)] in ends:
        yield Step(setting.origin, setting.value, setting.key)
    elif key.startswith(setting.key) and key[len(setting.key)] in ends:
        value = value_at(setting.value, key[len(setting.key) :])
        if value is not MISSING:
            yield Step(setting.origin, value)


def _verl_names(field: Field) -> Iterator[str]:
    """A key's own name in veRL, then the others that are read as it."""
    found = [] if OWN.fullmatch(field.key) else [field.key]
    for old, new in RENAMED.items():
        if field.key == new or field.key.startswith(f"{new}."):
            found.append(old + field.key[len(new) :])
    for name in found if not field.section else ():
        section = name.partition(".")[0]
        if section in ("actor", "ref", "rollout", "model"):
            yield PREFIX + name
        elif section in SHARED or name != field.key:
            yield name
