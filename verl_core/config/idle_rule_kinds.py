"""What a rule of `idle_rules.py` is, and the rules that repeat: for each role, for each optimizer, for what only some
entries of the catalogue read."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from verl_core.config.catalogue import entry, names
from verl_core.config.effective import get
from verl_core.config.schema import PoolConfig, RlxConfig

Condition = Callable[[RlxConfig], bool]


@dataclass(frozen=True)
class Rule:
    keys: tuple[str, ...]
    """Keys, or whole sections with a dot at the end."""
    idle: Condition
    """Whether they have no effect in this effective configuration."""
    switch: str
    """What to set for them to have one."""
    besides: tuple[str, ...] = ()
    """Keys of the sections that the rule leaves out."""
    also: tuple[str, ...] = ()
    """Keys that decide beside those `switch` names."""

    def deciders(self) -> set[str]:
        """The keys whose values make the others idle."""
        named = {*re.findall(r"[a-z_]+(?:\.[a-z_]+)+", self.switch), *self.also}
        presets = {key for name in names("algorithm") for key in (entry("algorithm", name).options or ())}
        return named | {"algorithm.name"} if named & presets else named

    def covers(self, key: str) -> bool:
        """Whether the rule is about this key."""
        inside = any(key == own or (own.endswith(".") and key.startswith(own)) for own in self.keys)
        return inside and key not in self.besides


def optimizer_rules(section: str) -> list[Rule]:
    def optim(c: RlxConfig) -> object:
        return get(c, section)

    return [
        Rule(
            (f"{section}.muon_lr", f"{section}.muon_momentum"),
            lambda c: get(optim(c), "optimizer") != "muon",
            f"{section}.optimizer=muon",
        ),
        Rule(
            (f"{section}.lr_warmup_steps_ratio",),
            lambda c: get(optim(c), "lr_warmup_steps") >= 0,
            f"{section}.lr_warmup_steps=-1",
        ),
        Rule(
            (f"{section}.min_lr_ratio",),
            lambda c: get(optim(c), "lr_scheduler_type") == "constant",
            f"{section}.lr_scheduler_type=cosine or linear",
        ),
    ]


def catalogue_rules(kind: str, chosen: str, keys: tuple[str, ...], where: Condition = lambda c: True) -> list[Rule]:
    """Keys that only some entries of a kind read, for configurations in which it matters."""

    def idle(c: RlxConfig, key: str) -> bool:
        return where(c) and (get(c, chosen) is None or key not in entry(kind, get(c, chosen)).keys)

    return [
        Rule(
            (key,),
            partial(idle, key=key),
            f"{chosen}=" + " or ".join(name for name in names(kind) if key in entry(kind, name).keys),
        )
        for key in keys
    ]


def keys_of(kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for name in names(kind) for key in entry(kind, name).keys))


def back_end_rules(role: str) -> list[Rule]:
    """Keys of the training back end that the role does not use."""

    def uses(back_end: str) -> Condition:
        return lambda c: get(c, role).strategy == back_end

    own = f"{role}.strategy"
    return [
        Rule((f"{role}.megatron.",), uses("fsdp"), f"{own}=megatron"),
        Rule((f"{role}.fsdp_config.", f"{role}.ulysses_sequence_parallel_size"), uses("megatron"), f"{own}=fsdp"),
    ]


def shard_rule(role: str) -> Rule:
    """Gradients of a rank that has a whole copy of the parameters are not cut."""

    def whole(c: RlxConfig) -> bool:
        pool = c.cluster.pools.get(get(c, role).pool)
        return get(c, f"{role}.fsdp_config.fsdp_size") == 1 or pool == PoolConfig(1, 1)

    return Rule(
        (f"{role}.fsdp_config.reduce_gradients",),
        whole,
        f"{role}.fsdp_config.fsdp_size=-1 and cluster.n_gpus_per_node=2 or more",
        also=("cluster.nproc", "cluster.nnodes"),
    )
