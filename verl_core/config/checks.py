"""What cannot be right together, found before anything starts: all of it at once, with the numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from verl_core.config.catalogue import entry
from verl_core.config.data_checks import data_faults
from verl_core.config.effective import (
    answers_a_row,
    effective,
    get,
    kl_terms,
    ranks_per_sequence,
    shorthand_pools,
    strategies,
    token_split,
    total_ranks,
    uses_reference,
    uses_rollout,
)
from verl_core.config.example_checks import reward_model_faults
from verl_core.config.key_checks import Said, each_key
from verl_core.config.loss_terms import FULL_KL
from verl_core.config.model_reward_checks import model_reward_faults
from verl_core.config.model_role_checks import model_role_faults
from verl_core.config.model_roles import estimates_advantages, scores_by_model, teachers, trains_process_rewards
from verl_core.config.no_effect import idle_keys
from verl_core.config.preference_checks import preference_faults
from verl_core.config.ranges import VLLM_LORA_RANK, VLLM_TEMPERATURES
from verl_core.config.reward_parts import reward_part_faults
from verl_core.config.rollout_correction import rejections_of, weights_of
from verl_core.config.sandbox_checks import sandbox_faults
from verl_core.config.schema import PoolConfig, RlxConfig
from verl_core.config.weight_checks import weight_faults

TOKEN_BUDGETS = {  # key: the count of sequences that excludes it
    "actor.ppo_max_token_len_per_gpu": "actor.ppo_micro_batch_size_per_gpu",
    "critic.ppo_max_token_len_per_gpu": "critic.ppo_micro_batch_size_per_gpu",
    "ref.log_prob_max_token_len_per_gpu": "ref.log_prob_micro_batch_size_per_gpu",
    "rollout.log_prob_max_token_len_per_gpu": "rollout.log_prob_micro_batch_size_per_gpu",
    "teacher.log_prob_max_token_len_per_gpu": "teacher.log_prob_micro_batch_size_per_gpu",
}

SHORTHAND = ("cluster.nproc", "cluster.nnodes", "cluster.n_gpus_per_node")


@dataclass
class Report:
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def check(config: RlxConfig, origins: Mapping[str, str], layers: Sequence[str]) -> Report:
    """Errors, and keys without effect. `origins` says who set each key, `layers` in which order (lowest first)."""
    if errors := each_key(config, origins):  # the arithmetic would only repeat them
        return Report(errors)
    said, e = Said(config, origins), effective(config)
    errors = [
        *data_faults(said, e),
        *_batches(said, e),
        *_micro_batches(said, e),
        *_cluster(said, e),
        *_algorithm(said, e),
        *_policy_loss(said, e),
        *preference_faults(said, e),
        *model_role_faults(said, e),
        *reward_model_faults(said, e),
        *_correction(said, e),
        *(_rollout(said, e) if uses_rollout(e) else ()),
        *(model_reward_faults(said, e) if uses_rollout(e) else ()),
        *_reward(said, e),
        *(reward_part_faults(e) if uses_rollout(e) else ()),
        *sandbox_faults(said, e),
        *_parallel(said, e),
        *_adapter(said, e),
    ]
    return Report(errors, [*idle_keys(config, e, origins, layers)])


def _batches(said: Said, e: RlxConfig) -> Iterator[str]:
    """Batch, mini-batch and ranks."""
    batch, n = e.data.train_batch_size, answers_a_row(e)
    shares = {("actor.ppo_mini_batch_size", e.actor.pool, ranks_per_sequence(e.actor))}
    if e.critic.enable:
        own = said.given("critic.ppo_mini_batch_size")
        key = f"{'critic' if own else 'actor'}.ppo_mini_batch_size"
        shares.add((key, e.critic.pool or "", ranks_per_sequence(e.critic)))
    if trains_process_rewards(e):
        shares.add(("actor.ppo_mini_batch_size", e.algorithm.prime.pool or "", ranks_per_sequence(e.actor)))
    for key in sorted({key for key, _, _ in shares}):
        if batch % (mini := get(e, key)):
            division = f"{batch} = {batch // mini} x {mini} + {batch % mini}"
            yield f"{said('data.train_batch_size')} is not a multiple of {said(key)}: {division}"
    for key, pool, together in sorted(shares):
        sequences, ranks = get(e, key) * n, _ranks(e, pool)
        if sequences * together < ranks:
            takers = f"the {ranks} ranks of pool {pool!r}"
            if together > 1:
                takers = f"the {ranks // together} groups of {together} ranks that the {ranks} of pool {pool!r} make"
            few = f"{sequences} sequences are fewer than {takers}"
            times = said("rollout.n") if uses_rollout(e) else f"{n} of a row"
            yield f"{said(key)} x {times} = {few}"


def _micro_batches(said: Said, e: RlxConfig) -> Iterator[str]:
    """One rule for cutting a rank's share, and room for the longest sequence; ranks that divide a sequence's tokens
    have their budgets together."""
    longest = e.data.max_prompt_length + e.data.max_response_length
    for budget, count in TOKEN_BUDGETS.items():
        tokens = said.value(budget)
        if tokens is not None and said.value(count) is not None:
            yield f"{said(count)} and {said(budget)} exclude each other: set one of them to null"
        section = budget.split(".")[0]
        together = 1 if section == "teacher" else token_split(e.critic if section == "critic" else e.actor)
        if isinstance(tokens, int) and tokens * together < longest:
            times = f" x {together} ranks" if together > 1 else ""
            yield (
                f"{said(budget)}{times} cannot hold the longest sequence: {said('data.max_prompt_length')} + "
                f"{said('data.max_response_length')} = {longest} tokens"
            )
    if e.actor.ppo_micro_batch_size_per_gpu is None and e.actor.ppo_max_token_len_per_gpu is None:
        yield (
            "set one of actor.ppo_micro_batch_size_per_gpu (sequences) and actor.ppo_max_token_len_per_gpu (tokens): "
            f"both are null; for example actor.ppo_max_token_len_per_gpu={2 * longest}"
        )


def _cluster(said: Said, e: RlxConfig) -> Iterator[str]:
    """Pools and executors."""
    pools = e.cluster.pools
    shorthand = [key for key in SHORTHAND if said.given(key) and said.value(key) != get(RlxConfig(), key)]
    if said.config.cluster.pools and shorthand and pools != shorthand_pools(said.config):
        yield f"{', '.join(map(said, shorthand))}: shorthand for one pool, but cluster.pools names {', '.join(pools)}"
    if "cluster.nproc" in shorthand and len(shorthand) > 1:
        yield f"{', '.join(map(said, shorthand))}: cluster.nproc alone says the ranks of one machine"
    roles = ["actor.pool", *(["rollout.pool"] if uses_rollout(e) else [])]
    roles += ["ref.pool"] if uses_reference(e) else []
    roles += ["critic.pool"] if e.critic.enable else []
    roles += ["teacher.pool"] if teachers(e) else []
    roles += ["algorithm.prime.pool"] if trains_process_rewards(e) else []
    roles += ["reward.reward_model.pool"] if scores_by_model(e) else []
    for key in roles:
        if get(e, key) not in pools:
            shown = said(key) if said.value(key) is not None else f"{key} (as {said('actor.pool')})"
            yield f"{shown}: no such pool; cluster.pools has {', '.join(pools)}"
    for name in sorted(set(pools) - {get(e, key) for key in roles}):
        yield f"cluster.pools.{name}: no role runs there; set one of {', '.join(roles)} to it, or remove it"
    if e.trainer.profile_steps:
        absent = [rank for rank in e.trainer.profile_ranks if rank >= total_ranks(e)]
        if absent or not e.trainer.profile_ranks:
            which = f"there is no rank {absent[0]}" if absent else "name at least one rank"
            yield f"{said('trainer.profile_ranks')}: {which}; the last one is {total_ranks(e) - 1}"
    if e.cluster.executor == "local" and total_ranks(e) > 1:
        yield f"{said('cluster.executor')} runs one rank, but {_sum(pools)}: set cluster.executor=ray"


def _algorithm(said: Said, e: RlxConfig) -> Iterator[str]:
    """What dynamic sampling and the advantage estimator need."""
    if uses_rollout(e) and e.algorithm.filter_groups.enable and e.rollout.n < 2:
        yield f"{said('rollout.n')}: dynamic sampling compares the answers of one prompt and needs at least 2"
    if e.algorithm.adv_estimator is None or not estimates_advantages(e):
        return
    name, needs = e.algorithm.adv_estimator, entry("advantage", e.algorithm.adv_estimator).needs
    if "group" in needs and e.rollout.n < 2:
        who = name if e.algorithm.name in (name, None) else f"{e.algorithm.name} (advantage {name})"
        yield f"{said('rollout.n')}: {who} compares the answers of one prompt with each other and needs at least 2"
    if "critic" in needs and not e.critic.enable:
        yield f"{said('critic.enable')}: {name} needs a critic's values"
    if name == "gdpo":
        yield from _reward_keys(said, e)
    if e.algorithm.use_pf_ppo and e.rollout.n < 2:
        yield f"{said('rollout.n')}: algorithm.use_pf_ppo draws among the answers of one prompt and needs at least 2"


def _reward_keys(said: Said, e: RlxConfig) -> Iterator[str]:
    keys, weights = e.algorithm.gdpo_reward_keys, e.algorithm.gdpo_reward_weights
    if not keys:
        yield "set algorithm.gdpo_reward_keys to the rewards that gdpo normalises apart, for example [score, format]"
    if len(set(keys)) < len(keys):
        yield f"{said('algorithm.gdpo_reward_keys')} names a reward twice"
    if weights is not None and len(weights) != len(keys):
        yield f"{said('algorithm.gdpo_reward_weights')}: {len(weights)} weights for {len(keys)} gdpo_reward_keys"


def _policy_loss(said: Said, e: RlxConfig) -> Iterator[str]:
    """What a loss asks of its own keys."""
    low, high = "actor.policy_loss.clip_cov_lb", "actor.policy_loss.clip_cov_ub"
    if e.actor.policy_loss.loss_mode == "clip_cov" and get(e, low) >= get(e, high):
        yield f"{said(low)} is not below {said(high)}: no token lies between"
    if e.actor.use_kl_loss and e.algorithm.use_kl_in_reward:
        for key in ("actor.kl_loss_coef", "algorithm.kl_ctrl.kl_coef"):
            if not get(e, key):
                yield f"{said(key)}: of the KL in loss and in reward this one is 0; switch it off instead"
    for key, kind in kl_terms(e).items():
        if kind == FULL_KL and e.ref.pool != e.actor.pool:
            yield f"{said(key)} needs the reference on the actor's pool: set ref.pool={e.actor.pool}"


def _correction(said: Said, e: RlxConfig) -> Iterator[str]:
    """Thresholds and rules that are texts."""
    asked, section = e.algorithm.rollout_correction, "algorithm.rollout_correction"
    for key, read in (("rollout_is_threshold", weights_of), ("rollout_rs", rejections_of)):
        try:
            read(asked)
        except ValueError as error:
            yield f"{said(f'{section}.{key}')}: {error}"


def _rollout(said: Said, e: RlxConfig) -> Iterator[str]:
    """Engine, its pool and its limits."""
    r, ranks = e.rollout, _ranks(e, e.rollout.pool)
    size = "rollout.tensor_model_parallel_size"
    yield from weight_faults(said, e)
    if r.engine == "vllm":
        coldest, hottest = VLLM_TEMPERATURES
        for key in ("rollout.temperature", *(["rollout.val_kwargs.temperature"] if r.val_kwargs.do_sample else [])):
            if get(e, key) and not coldest <= get(e, key) <= hottest:
                yield f"{said(key)} is not in [{coldest:g}, {hottest:g}], where {said('rollout.engine')} samples"
    if r.engine == "sglang" and e.trainer.device == "cpu":
        yield f"{said('rollout.engine')} needs CUDA GPUs, and {said('trainer.device')}: set rollout.engine=hf or vllm"
    if r.engine != "hf" and ranks % r.tensor_model_parallel_size:
        yield f"{said(size)} does not divide the {ranks} ranks of rollout.pool {r.pool!r}"
    elif r.engine != "hf" and (node := e.cluster.pools.get(r.pool or "", PoolConfig()).gpus) % int(get(e, size)):
        yield f"{said(size)} does not divide the {node} ranks of a node of rollout.pool {r.pool!r}: engines span no two"
    if e.weights.verify and r.lora_native and e.model.lora_rank:
        yield f"{said('weights.verify')} and {said('rollout.lora_native')} do not go together: set one of them to false"
    if r.engine == "vllm" and r.lora_native and e.model.lora_rank > VLLM_LORA_RANK:
        yield f"{said('model.lora_rank')}: {said('rollout.lora_native')} serves ranks up to {VLLM_LORA_RANK}"
    if r.max_model_len is not None and r.max_model_len <= e.data.max_prompt_length:
        yield f"{said('rollout.max_model_len')} leaves no room for an answer: {said('data.max_prompt_length')}"


def _reward(said: Said, e: RlxConfig) -> Iterator[str]:
    """The penalty of long answers, which off may have anything in its other keys; the ends of length curves."""
    buffer, longest = e.reward.overlong_buffer, e.data.max_response_length
    if buffer.enable and not 1 <= buffer.len <= longest:
        yield f"{said('reward.overlong_buffer.len')} is not in [1, {longest}]: {said('data.max_response_length')}"
    for key in ("reward.length_shaping.right", "reward.length_shaping.wrong"):
        if len(get(e, key)) != 2:
            yield f"{said(key)} is not two terms: that of no tokens, and that of data.max_response_length"


def _parallel(said: Said, e: RlxConfig) -> Iterator[str]:
    """Sizes of meshes against the ranks of their pool, for the back end that reads them."""
    for role in ["actor", *(["critic"] if e.critic.enable else [])]:
        section = get(e, role)
        ranks, pool = _ranks(e, section.pool), f"{_ranks(e, section.pool)} ranks of pool {section.pool!r}"
        if section.strategy == "fsdp":
            yield from _parts(said, e, role, ranks)
            sp, shards = section.ulysses_sequence_parallel_size, section.fsdp_config.fsdp_size
            if ranks % sp:
                yield f"{said(f'{role}.ulysses_sequence_parallel_size')} does not divide the {pool}"
            if shards != -1 and (shards < 1 or ranks % shards):
                yield f"{said(f'{role}.fsdp_config.fsdp_size')} does not divide the {pool} (-1: all of them)"
            continue
        m = section.megatron
        tp, pp, cp = m.tensor_model_parallel_size, m.pipeline_model_parallel_size, m.context_parallel_size
        if ranks % (tp * pp * cp):
            keys = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
            sizes = " x ".join(said(f"{role}.megatron.{key}") for key in keys)
            yield f"{sizes} = {tp * pp * cp} does not divide the {pool}"
        experts = m.expert_model_parallel_size * (m.expert_tensor_parallel_size or 1) * pp
        if ranks % experts:
            key = f"{role}.megatron.expert_model_parallel_size"
            yield f"{said(key)} x expert tensor and pipeline sizes = {experts} does not divide the {pool}"
    if e.critic.enable and len(strategies(e)) > 1 and e.critic.pool == e.actor.pool:
        yield f"{said('critic.strategy')} differs from {said('actor.strategy')} on one pool: set critic.pool"


def _parts(said: Said, e: RlxConfig, role: str, ranks: int) -> Iterator[str]:
    """FSDP's ranks that have parts of layers or experts, and what these cannot be combined with."""
    section = get(e, role)
    fsdp, rows = section.fsdp_config, f"{role}.ulysses_sequence_parallel_size"
    tensor, expert = f"{role}.fsdp_config.tensor_parallel_size", f"{role}.fsdp_config.expert_parallel_size"
    copy = ranks if fsdp.fsdp_size == -1 else fsdp.fsdp_size
    for key in (tensor, expert):
        if (size := get(e, key)) == 1:
            continue
        if copy % size:
            yield f"{said(key)} does not divide the {copy} ranks that share a copy of the parameters"
        if role == "actor" and e.model.lora_rank:
            yield f"{said(key)} and {said('model.lora_rank')} do not go together: set one of them back"
        if e.model.enable_activation_offload:
            yield f"{said(key)} and {said('model.enable_activation_offload')} do not go together: set one of them back"
    if fsdp.tensor_parallel_size > 1:
        for other in (rows, expert):
            if get(e, other) > 1:
                yield f"{said(tensor)} and {said(other)} do not go together: set one of them to 1"


def _adapter(said: Said, e: RlxConfig) -> Iterator[str]:
    """LoRA and what it cannot be combined with."""
    if e.model.lora_rank and e.actor.strategy == "megatron":
        yield f"{said('model.lora_rank')}: adapters are trained by {said('actor.strategy')} not, but by fsdp"
    if e.model.lora_adapter_path is not None and not e.model.lora_rank:
        yield f"{said('model.lora_adapter_path')} needs model.lora_rank and lora_alpha: its adapter_config.json's"
    if e.model.lora_rank and not e.model.target_modules:
        yield f"{said('model.target_modules')} names no module; all-linear is the default"


def _ranks(e: RlxConfig, pool: str | None) -> int:
    """Ranks of a pool; 1 for one that is missing (reported elsewhere)."""
    p = e.cluster.pools.get(pool or "", PoolConfig())
    return p.nodes * p.gpus


def _sum(pools: Mapping[str, PoolConfig]) -> str:
    return " + ".join(f"pool {name} has {p.nodes} x {p.gpus}" for name, p in pools.items())
