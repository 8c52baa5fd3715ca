"""Settings that lower a plan's memory, as a person would try them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from verl_core.config.checks import TOKEN_BUDGETS
from verl_core.config.effective import effective, get, settled, uses_rollout
from verl_core.config.schema import RlxConfig

SETTING, MORE_GPUS, OTHER_TRAINING = range(3)


@dataclass(frozen=True)
class Change:
    settings: dict[str, Any]
    kind: int = SETTING
    """SETTING costs time at most, MORE_GPUS costs machines, OTHER_TRAINING trains something else."""

    def __or__(self, other: "Change") -> "Change":
        return Change(self.settings | other.settings, max(self.kind, other.kind))


def changes(config: RlxConfig) -> Iterator[Change]:
    """Single changes to a configuration as asked for, that are not in it yet. They may break a rule; checks follow."""
    e = effective(config)
    trained = ["actor", *(["critic"] if e.critic.enable else [])]
    yield from _micro_batches(config, e)
    for role in trained:
        if get(e, role).strategy == "megatron":
            yield from _megatron(e, role)
        else:
            yield from _fsdp(e, role)
    yield from _offload(e, trained)
    if uses_rollout(e):
        yield from _engine(e)
    yield from _more_gpus(config)
    if e.actor.strategy == "fsdp":
        if not e.model.lora_rank:
            yield Change({"model.lora_rank": 32}, OTHER_TRAINING)
        if e.actor.fsdp_config.model_dtype == "float32":
            yield Change({"actor.fsdp_config.model_dtype": "bfloat16"}, OTHER_TRAINING)


def _micro_batches(config: RlxConfig, e: RlxConfig) -> Iterator[Change]:
    """All roles at once: fewer sequences (a half, one) or tokens (the longest sequence) a forward."""
    set_counts = {key: get(config, key) for key in TOKEN_BUDGETS.values() if (get(config, key) or 1) > 1}
    longest = e.data.max_prompt_length + e.data.max_response_length
    budgets = {key: longest for key in TOKEN_BUDGETS if (get(config, key) or longest) > longest}
    most = max(set_counts.values(), default=1)
    for size in dict.fromkeys((most // 2, 1)):
        if lowered := {key: size for key, value in set_counts.items() if value > size}:
            yield Change(lowered | budgets)
    if budgets and not set_counts:
        yield Change(budgets)


def _fsdp(e: RlxConfig, role: str) -> Iterator[Change]:
    section = get(e, role)
    if not section.fsdp_config.reshard_after_forward:
        yield Change({f"{role}.fsdp_config.reshard_after_forward": True})
    if not section.fsdp_config.reshard_between_micro_batches:
        yield Change({f"{role}.fsdp_config.reshard_between_micro_batches": True})
    if section.fsdp_config.reduce_gradients != "each":
        yield Change({f"{role}.fsdp_config.reduce_gradients": "each"})
    if section.fsdp_config.fsdp_size != -1:
        yield Change({f"{role}.fsdp_config.fsdp_size": -1})
    for times in (2, 4):
        yield Change({f"{role}.ulysses_sequence_parallel_size": section.ulysses_sequence_parallel_size * times})
    tensor, expert = section.fsdp_config.tensor_parallel_size, section.fsdp_config.expert_parallel_size
    yield Change({f"{role}.fsdp_config.tensor_parallel_size": tensor * 2})
    yield Change({f"{role}.fsdp_config.expert_parallel_size": expert * 2})
    recomputes = (
        e.model.enable_gradient_checkpointing if role == "actor" else e.critic.model.enable_gradient_checkpointing
    )
    if not recomputes:
        key = "model" if role == "actor" else "critic.model"
        yield Change({f"{key}.enable_gradient_checkpointing": True})


def _megatron(e: RlxConfig, role: str) -> Iterator[Change]:
    m, prefix = get(e, role).megatron, f"{role}.megatron."
    for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"):
        yield Change({prefix + key: getattr(m, key) * 2})
    if m.recompute_granularity != "full":
        yield Change({prefix + "recompute_granularity": "full"})
    if not m.use_distributed_optimizer:
        yield Change({prefix + "use_distributed_optimizer": True})
    if not m.sequence_parallel:
        yield Change({prefix + "sequence_parallel": True})


def _offload(e: RlxConfig, roles: list[str]) -> Iterator[Change]:
    """Optimizer state or parameters of one role, and of all of them, in host memory while the role is idle."""
    for what in ("optimizer_offload", "param_offload"):
        sections = [f"{role}.{'megatron' if get(e, role).strategy == 'megatron' else 'fsdp_config'}" for role in roles]
        keys = [f"{section}.{what}" for section in sections if not getattr(get(e, section), what)]
        for key in keys:
            yield Change({key: True})
        if len(keys) > 1:
            yield Change(dict.fromkeys(keys, True))


def _engine(e: RlxConfig) -> Iterator[Change]:
    r = e.rollout
    if r.engine == "hf":
        for part in (2, 4, 8):
            if r.max_num_seqs // part:
                yield Change({"rollout.max_num_seqs": r.max_num_seqs // part})
        return
    for share in (0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2):
        if not math.isclose(share, r.gpu_memory_utilization):
            yield Change({"rollout.gpu_memory_utilization": share})
    if not r.enforce_eager:
        yield Change({"rollout.enforce_eager": True})
    per_node = e.cluster.pools[settled(r.pool)].gpus
    for times in (2, 4, 8):
        if r.tensor_model_parallel_size * times <= per_node:
            yield Change({"rollout.tensor_model_parallel_size": r.tensor_model_parallel_size * times})


def _more_gpus(config: RlxConfig) -> Iterator[Change]:
    cluster = config.cluster
    for times in (2, 4, 8):
        if cluster.pools:
            for name, pool in cluster.pools.items():
                yield Change({f"cluster.pools.{name}.gpus": pool.gpus * times}, MORE_GPUS)
        elif cluster.nproc:
            yield Change({"cluster.nproc": cluster.nproc * times}, MORE_GPUS)
        elif cluster.n_gpus_per_node * times <= 8:
            yield Change({"cluster.n_gpus_per_node": cluster.n_gpus_per_node * times}, MORE_GPUS)
        else:
            yield Change({"cluster.nnodes": cluster.nnodes * times}, MORE_GPUS)
