"""Memory of a rollout engine on one GPU of its pool."""

from dataclasses import dataclass

from verl_core.config.effective import settled
from verl_core.config.schema import RlxConfig
from verl_core.planning.components import CONTEXT, Components
from verl_core.planning.roles import BYTES, Role
from verl_core.planning.shapes import ModelShape
from verl_core.planning.work import Work, work_of

GRAPHS = 0.8e9  # CUDA graphs of an engine that captures them
ROOM = 0.25e9  # what an engine's share of the memory loses to neither weights nor activations nor cache
ASLEEP = 1.0e9  # what an engine leaves on the GPU at sleep level 1 (measured: 72.8 to 1.0 GB)
PREFILL_TOKENS = 8192  # prompts of the hf engine in one pass: _PREFILL_TOKENS of verl_core/rollout/hf/scheduler.py
PREFIXES = 8  # prompts it keeps for waiting requests


@dataclass(frozen=True)
class Engine:
    """The engines of a pool, one replica of `tp` GPUs beside the other."""

    kind: str
    pool: str
    ranks: int
    per_node: int
    tp: int
    shape: ModelShape
    bytes: int
    """Of a weight, and of a number in the cache."""
    model_len: int
    batched_tokens: int
    at_once: int
    """Sequences a replica is allowed and given to run at the same time."""
    each: int
    """Sequences a replica has to generate in a step."""
    utilization: float
    eager: bool
    work: Work
    copies: bool
    """hf: holds weights of its own, because the trainer's are sharded or of another dtype."""

    @property
    def replicas(self) -> int:
        return max(1, self.ranks // self.tp)

    @property
    def weights(self) -> float:
        """A GPU's share of one copy of the model."""
        return self.bytes * self.shape.params / self.tp

    @property
    def cache_per_token(self) -> float:
        """Keys and values of one token in all layers on one GPU; a key head is never cut."""
        s = self.shape
        heads = max(1.0, s.kv_heads / self.tp)
        return 2 * s.layers * heads * s.head_dim * self.bytes

    @property
    def cache_per_sequence(self) -> float:
        return self.cache_per_token * self.shape.remembered(self.model_len)


def engine_of(c: RlxConfig, shape: ModelShape, actor: Role, on_cpu: bool) -> Engine:
    r, pool_name, work = c.rollout, settled(c.rollout.pool), work_of(c)
    pool = c.cluster.pools[pool_name]
    ranks = pool.nodes * pool.gpus
    tp = 1 if r.engine == "hf" else r.tensor_model_parallel_size
    each = -(-work.sequences // max(1, ranks // tp))
    size = BYTES[r.dtype or ("float32" if on_cpu else "bfloat16")]
    return Engine(
        kind=r.engine,
        pool=pool_name,
        ranks=ranks,
        per_node=pool.gpus,
        tp=tp,
        shape=shape,
        bytes=size,
        model_len=min(settled(r.max_model_len), work.length),
        batched_tokens=r.max_num_batched_tokens,
        at_once=min(r.max_num_seqs, each),
        each=each,
        utilization=r.gpu_memory_utilization,
        eager=r.enforce_eager,
        work=work,
        copies=size != actor.stored or actor.mesh.ranks > 1 or actor.adapter,
    )


def generating(engine: Engine, memory: float) -> Components:
    """While it generates on a GPU of `memory` bytes: vllm and sglang fill their share of it with cache, and hold the
    CUDA context and graphs beside that share."""
    if engine.kind == "hf":
        return _hf(engine)
    workspace = _workspace(engine)
    return Components(
        parameters=engine.weights,
        activations=workspace + ROOM,
        logits=max(0.0, _logits(engine) - workspace),
        kv_cache=cache_room(engine, memory),
        communication=0.3e9 if engine.tp > 1 else 0.0,
        reserve=CONTEXT + (0.0 if engine.eager else GRAPHS),
    )


def cache_room(engine: Engine, memory: float) -> float:
    """Bytes for keys and values on each GPU; 0 when weights and buffers leave none. vLLM measures its activations in a
    pass over as many prompt tokens as it takes at once, and one over the logits of as many sequences: the larger one
    counts."""
    if engine.kind == "hf":
        return engine.at_once * engine.cache_per_sequence
    taken = engine.weights + max(_workspace(engine), _logits(engine)) + ROOM + (0.3e9 if engine.tp > 1 else 0.0)
    return max(0.0, engine.utilization * memory - taken)


def sequences_held(engine: Engine, memory: float) -> int:
    """Sequences of full length that the cache holds at once."""
    return int(cache_room(engine, memory) / engine.cache_per_sequence)


def asleep(engine: Engine) -> float:
    """What it leaves on the GPU while others work."""
    return _own_weights(engine) if engine.kind == "hf" else ASLEEP


def awake_without_cache(engine: Engine) -> float:
    """What it holds while it is given new weights."""
    return _own_weights(engine) if engine.kind == "hf" else ASLEEP + engine.weights


def host_bytes(engine: Engine) -> float:
    """A GPU's share of weights that a sleeping vllm or sglang keeps in host memory."""
    return 0.0 if engine.kind == "hf" else engine.weights


def _own_weights(engine: Engine) -> float:
    """The hf engine's copies: of everything when it cannot share, and of the projections it fuses in any case."""
    s = engine.shape
    fused = s.hidden * (s.q_width + 2 * s.kv_width) + (0 if s.experts else 2 * s.hidden * s.ffn)
    return engine.bytes * ((s.params if engine.copies else 0) + s.layers * fused)


def _hf(engine: Engine) -> Components:
    s, b = engine.shape, engine.bytes
    tokens = max(PREFILL_TOKENS, engine.work.prompt)
    prefix = (tokens + PREFIXES * engine.work.prompt) * engine.cache_per_token
    return Components(
        parameters=_own_weights(engine),
        activations=tokens * b * (4 * s.hidden + 3 * s.ffn),
        logits=_sampling(engine),
        kv_cache=engine.at_once * engine.cache_per_sequence + prefix,
    )


def _workspace(engine: Engine) -> float:
    """Activations of the tokens that go through the model at once; factors fitted to what vLLM 0.26 leaves for its
    cache (docs/planning.md)."""
    s, b = engine.shape, engine.bytes
    inner = s.experts_per_token * (s.expert_ffn * 5.5 + 2 * s.hidden) if s.experts else 5.5 * s.ffn
    widest = max(inner, 2 * s.q_width + 2 * s.kv_width) / engine.tp
    return engine.batched_tokens * b * (4 * s.hidden + widest)


def _logits(engine: Engine) -> float:
    """Of the running sequences, a GPU's share, while vllm or sglang draws: in float32."""
    return engine.at_once * engine.shape.vocab * 4 / engine.tp


def _sampling(engine: Engine) -> float:
    """Logits of the sequences that the hf engine runs: as computed, in float32, sorted and as probabilities."""
    return engine.at_once * engine.shape.vocab * (engine.bytes + 12)
