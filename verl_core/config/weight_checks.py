"""Which way of the weights goes with which engine, pool and trainer."""

from collections.abc import Iterator

from verl_core.config.effective import engines_apart, get, uses_reference
from verl_core.config.key_checks import Said
from verl_core.config.schema import RlxConfig

ONE_POOL = {"inplace": "in one process", "ipc": "on one device"}
"""Transports that reach no other pool; the others reach no engine on the actor's."""


def weight_faults(said: Said, e: RlxConfig) -> Iterator[str]:
    """Faults of an effective configuration that generates."""
    kind, r = str(e.weights.type), e.rollout
    if r.pool not in e.cluster.pools or e.actor.pool not in e.cluster.pools:
        return  # reported with the pools
    pools = f"rollout.pool is {r.pool!r}, actor.pool {e.actor.pool!r}"
    if engines_apart(e):
        if kind in ONE_POOL:
            yield f"{said('weights.type')} needs engine and actor {ONE_POOL[kind]}, but {pools}: broadcast joins pools"
        yield from _neighbours(said, e)
    elif kind not in ONE_POOL:
        own = "inplace" if r.engine == "hf" else "ipc"
        yield f"{said('weights.type')} serves engines on a pool of their own, but {pools}: {own} serves these"
    elif (kind == "inplace") != (r.engine == "hf"):
        yield f"{said('weights.type')}: inplace goes with rollout.engine=hf and with no other; {said('rollout.engine')}"
    if kind == "disk" and not e.weights.folder:
        yield f"{said('weights.folder')}: {said('weights.type')} needs a folder that all nodes see under one path"
    if kind == "delta":
        yield from _delta(said, e)


def _neighbours(said: Said, e: RlxConfig) -> Iterator[str]:
    """An engine that no trainer lets have its GPU never sleeps: nothing else can be there."""
    others = {"critic.pool": e.critic.enable, "ref.pool": uses_reference(e)}
    for key, used in others.items():
        if used and get(e, key) == e.rollout.pool:
            yield f"{said(key)}: engines apart from the actor share their pool {e.rollout.pool!r} with no other role"


def _delta(said: Said, e: RlxConfig) -> Iterator[str]:
    """Shards are compared as they lie, which only plain ones can be."""
    fsdp = "actor.fsdp_config."
    for key, plain in (
        ("model.lora_rank", 0),
        (f"{fsdp}tensor_parallel_size", 1),
        (f"{fsdp}expert_parallel_size", 1),
    ):
        if get(e, key) != plain:
            yield f"{said('weights.type')} and {said(key)} do not go together: set weights.type=broadcast"
