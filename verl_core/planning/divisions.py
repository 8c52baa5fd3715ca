"""What cannot be built because sizes do not divide: head counts, layers, experts, lengths. Batches, ranks and pools are
checked with the configuration itself."""

from collections.abc import Iterator, Mapping

from verl_core.config.effective import settled, uses_rollout
from verl_core.config.schema import ActorConfig, CriticConfig, FsdpConfig, RlxConfig
from verl_core.planning.roles import has_own_reference
from verl_core.planning.shapes import MATRICES, ModelShape

VOCABULARY_STEP = 64
"""Rollout engines fill the vocabulary up to a multiple of this before they cut it (vLLM's default)."""


def divisions(c: RlxConfig, shapes: Mapping[str, ModelShape]) -> list[str]:
    """Every fault of an effective configuration, each with its key and numbers."""
    found = meshes(c, shapes)
    found += lengths(c, shapes["actor"])
    found += targets(c, shapes["actor"])
    return found


def meshes(c: RlxConfig, shapes: Mapping[str, ModelShape]) -> list[str]:
    """The faults of the meshes of trained roles and rollout engines alone."""
    found = [*_role("actor", c.actor, shapes["actor"])]
    if has_own_reference(c):
        found += _reference(c)
    if c.critic.enable:
        found += _role("critic", c.critic, shapes["critic"])
    if uses_rollout(c):
        found += _rollout(c, shapes["actor"])
    return found


def _role(role: str, settings: ActorConfig | CriticConfig, shape: ModelShape) -> Iterator[str]:
    if settings.strategy == "fsdp":
        yield from _heads(f"{role}.ulysses_sequence_parallel_size", settings.ulysses_sequence_parallel_size, shape)
        yield from _parts(f"{role}.fsdp_config.", settings.fsdp_config, shape)
        return
    m, prefix = settings.megatron, f"{role}.megatron."
    tp, pp, chunks = (
        m.tensor_model_parallel_size,
        m.pipeline_model_parallel_size,
        m.virtual_pipeline_model_parallel_size,
    )
    yield from _heads(f"{prefix}tensor_model_parallel_size", tp, shape)
    dense = not shape.experts or shape.first_dense_layers
    if dense and shape.ffn % tp:
        yield f"{prefix}tensor_model_parallel_size={tp} does not divide the model's feed-forward width {shape.ffn}"
    if shape.layers < pp:
        yield f"{prefix}pipeline_model_parallel_size={pp}: the model has {shape.layers} layers, fewer than stages"
    if chunks and pp == 1:
        yield f"{prefix}virtual_pipeline_model_parallel_size={chunks} needs {prefix}pipeline_model_parallel_size > 1"
    elif chunks and shape.layers % (pp * chunks):
        yield (
            f"{prefix}pipeline_model_parallel_size={pp} x virtual_pipeline_model_parallel_size={chunks} = "
            f"{pp * chunks} does not divide the model's {shape.layers} layers"
        )
    yield from _experts(prefix, m.expert_model_parallel_size, m.expert_tensor_parallel_size, shape)


def _parts(prefix: str, fsdp: FsdpConfig, shape: ModelShape) -> Iterator[str]:
    """FSDP's ranks with parts of layers have whole experts too, as those among which only experts are dealt out."""
    tp, ep = f"{prefix}tensor_parallel_size", f"{prefix}expert_parallel_size"
    yield from undivided_heads(tp, fsdp.tensor_parallel_size, shape.heads, shape.kv_heads)
    for name, width in (("feed-forward", shape.ffn), ("shared expert's", shape.shared_expert_ffn)):
        dense = name != "feed-forward" or not shape.experts or shape.first_dense_layers
        if dense and width % fsdp.tensor_parallel_size:
            yield f"{tp}={fsdp.tensor_parallel_size} does not divide the model's {name} width {width}"
    if not shape.experts and fsdp.expert_parallel_size > 1:
        yield f"{ep}={fsdp.expert_parallel_size}: the model has no experts; set it to 1"
    for key, size in ((tp, fsdp.tensor_parallel_size), (ep, fsdp.expert_parallel_size)):
        if shape.experts % size:
            yield f"{key}={size} does not divide the model's {shape.experts} experts"


def _reference(c: RlxConfig) -> Iterator[str]:
    """A reference on a pool of its own is laid out by the actor's sizes."""
    pool = c.cluster.pools[settled(c.ref.pool)]
    ranks, m = pool.nodes * pool.gpus, c.actor.megatron
    tp, pp, cp = m.tensor_model_parallel_size, m.pipeline_model_parallel_size, m.context_parallel_size
    sizes = {
        "actor.ulysses_sequence_parallel_size": c.actor.ulysses_sequence_parallel_size,
        "actor.fsdp_config.fsdp_size": max(1, c.actor.fsdp_config.fsdp_size),
        "actor.fsdp_config.tensor_parallel_size": c.actor.fsdp_config.tensor_parallel_size,
        "actor.fsdp_config.expert_parallel_size": c.actor.fsdp_config.expert_parallel_size,
    }
    if c.actor.strategy == "megatron":
        experts = m.expert_model_parallel_size * (m.expert_tensor_parallel_size or 1) * pp
        sizes = {
            "actor.megatron's tensor x pipeline x context sizes": tp * pp * cp,
            "actor.megatron's expert x expert tensor x pipeline sizes": experts,
        }
    for key, size in sizes.items():
        if ranks % size:
            yield f"{key} = {size} does not divide the {ranks} ranks of ref.pool {c.ref.pool!r}"


def _experts(prefix: str, ep: int, etp: int | None, shape: ModelShape) -> Iterator[str]:
    if not shape.experts:
        for key, size, off in (("expert_model", ep, "1"), ("expert_tensor", etp or 1, "null")):
            if size > 1:
                yield f"{prefix}{key}_parallel_size={size}: the model has no experts; set it to {off}"
        return
    if shape.experts % ep:
        yield f"{prefix}expert_model_parallel_size={ep} does not divide the model's {shape.experts} experts"
    if shape.expert_ffn % (etp or 1):
        yield f"{prefix}expert_tensor_parallel_size={etp} does not divide the expert's width {shape.expert_ffn}"


def _heads(key: str, size: int, shape: ModelShape) -> Iterator[str]:
    yield from uneven_heads(key, size, shape.heads, shape.kv_heads)


def uneven_parts(key: str, ranks: int, heads: int, kv_heads: int, vocabulary: int) -> Iterator[str]:
    """Of a rollout engine's tensor parallelism."""
    yield from uneven_heads(key, ranks, heads, kv_heads)
    rows = -(-vocabulary // VOCABULARY_STEP) * VOCABULARY_STEP
    if rows % ranks:
        yield f"{key}={ranks} does not divide the model's {vocabulary} tokens, filled up to {rows}"


def uneven_heads(key: str, ranks: int, heads: int, kv_heads: int) -> Iterator[str]:
    """Query heads are cut; key heads are cut, or repeated where there are fewer than ranks."""
    if heads % ranks:
        yield f"{key}={ranks} does not divide the model's {heads} attention heads"
    elif kv_heads % ranks and ranks % kv_heads:
        yield f"{key}={ranks} and the model's {kv_heads} key-value heads: neither divides the other"


def undivided_heads(key: str, ranks: int, heads: int, kv_heads: int) -> Iterator[str]:
    """Of tensor parallelism, which cuts key heads too."""
    for name, count in (("attention", heads), ("key-value", kv_heads)):
        if count % ranks:
            yield f"{key}={ranks} does not divide the model's {count} {name} heads"


def _rollout(c: RlxConfig, shape: ModelShape) -> Iterator[str]:
    if c.rollout.engine == "hf":
        return
    key, tp = "rollout.tensor_model_parallel_size", c.rollout.tensor_model_parallel_size
    yield from uneven_parts(key, tp, shape.heads, shape.kv_heads, shape.vocab)
    width, name = (shape.expert_ffn, "expert") if shape.experts else (shape.ffn, "feed-forward")
    if width % tp:
        yield f"{key}={tp} does not divide the model's {name} width {width}"


def lengths(c: RlxConfig, shape: ModelShape) -> Iterator[str]:
    """Of sequences that are longer than the model takes. vLLM and SGLang refuse room beyond that, too."""
    longest = c.data.max_prompt_length + c.data.max_response_length
    most = settled(c.rollout.max_model_len) if uses_rollout(c) else longest
    if not shape.max_positions:
        return
    if min(longest, most) > shape.max_positions:
        yield (
            f"data.max_prompt_length={c.data.max_prompt_length} + data.max_response_length="
            f"{c.data.max_response_length}: {min(longest, most)} tokens, but the model takes {shape.max_positions}"
        )
    elif most > shape.max_positions and c.rollout.engine != "hf":
        yield f"rollout.max_model_len={most} tokens, but the model takes {shape.max_positions}"


def targets(c: RlxConfig, shape: ModelShape) -> Iterator[str]:
    """Of an adapter's targets that no matrix answers to. A mixture may have more matrices than are known here: of it
    only where nothing would be adapted."""
    if not c.model.lora_rank:
        return
    named = c.model.target_modules
    for target in [named] if isinstance(named, str) else named:
        adapts = shape.lora_params(c.model.lora_rank, target)
        if not adapts and (not shape.experts or not shape.lora_params(c.model.lora_rank, named)):
            yield f"model.target_modules: no layer has a matrix named {target!r}; there are {', '.join(MATRICES)}"
