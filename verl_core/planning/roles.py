"""The roles of an effective configuration as plans see them: model, mesh, dtypes, what is trained, what waits where."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from verl_core.config.effective import kl_terms, learner, settled, uses_reference
from verl_core.config.loss_terms import FULL_KL
from verl_core.config.model_roles import SCORING, frozen, role_settings, teachers, trains_process_rewards
from verl_core.config.schema import ActorConfig, CriticConfig, PoolConfig, RefConfig, RlxConfig, RolloutConfig
from verl_core.config.schema_distillation import FORWARD_TOPK
from verl_core.planning.gpus import Gpu
from verl_core.planning.mesh import Mesh, Stage, mesh_of
from verl_core.planning.shapes import ModelShape
from verl_core.planning.work import Micro, Work, cut, work_of

BYTES = {"float32": 4, "bfloat16": 2}
# The FSDP2 engine decides by these as well.
GATHERED_SHARE = 0.1  # of a GPU's memory, for a model kept gathered through a mini-batch
GRADIENT_SHARE = 0.1  # of it, for whole float32 gradients between a mini-batch's micro-batches
KEPT_LOGITS_SHARE = 0.05  # of it, for logits that wait for the backward pass: 23,000 tokens of 152,000 bf16 on an H200


@dataclass(frozen=True)
class Held:
    """Parameters in a part of the model: those every data-parallel rank has alike, and routed experts."""

    common: float
    experts: float = 0.0

    @property
    def all(self) -> float:
        return self.common + self.experts


@dataclass(frozen=True)
class Role:
    """One trained or frozen model on a pool."""

    name: str
    pool: str
    shape: ModelShape
    mesh: Mesh
    work: Work
    value_head: bool
    trained: int
    """Parameters with gradients: all, an adapter's, or none (a reference on a pool of its own)."""
    stored: int
    """Bytes of a stored parameter."""
    compute: int
    """Bytes of a number in forward and backward."""
    optimizer: str
    update: Micro
    forward: Micro
    """Of a pass without gradients."""
    reference: Micro
    """Of the reference's."""
    updates: int
    """Optimizer steps a step."""
    mini_batches: int
    checkpointing: bool
    selective: bool
    """Recomputation keeps attention and its projections."""
    liger: bool
    compiled: bool
    """Layers go through torch.compile."""
    kept_logits: float
    """Bytes of logits that the GPU's output-layer kernels may keep; 0: plain torch makes the logits, in float32."""
    full_kl: bool
    """Its KL from a reference is over the whole vocabulary."""
    wide: bool
    """Several log-probs of each distribution are taken beside the token's own: plain torch makes their logits."""
    activations_in_host: bool
    reshard: bool
    """FSDP: gathered parameters are freed between forward and backward."""
    gathers_once: bool
    """FSDP: they stay from a mini-batch's first micro-batch to its last."""
    reduces_each: bool
    """FSDP: gradients are reduced after each micro-batch, not once a mini-batch."""
    param_offload: bool
    optimizer_offload: bool
    tokens_split_by_tp: bool
    """Norms and residuals are divided among tensor-parallel ranks too: FSDP's always, Megatron's by sequence_parallel.
    """
    distributed_optimizer: bool

    @cached_property
    def params(self) -> int:
        """The role's parameters: a value model has a linear layer with one output for the vocabulary's."""
        return self.body_params + (self.shape.hidden if self.value_head else self.shape.head_params)

    @cached_property
    def body_params(self) -> int:
        return self.shape.layers_params + self.shape.embedding_params + self.shape.hidden

    @property
    def root_params(self) -> int:
        """What is gathered with the root and stays gathered: embedding, last norm, output layer."""
        return self.params - self.shape.layers_params

    @cached_property
    def gathered(self) -> list[tuple[float, int]]:
        """What FSDP's ranks gather, and how many do it together: the whole model, or a rank's part of the layers or
        experts, among those that have the same, and the rest."""
        s, m = self.shape, self.mesh
        experts = sum(s.expert_params(i) for i in range(s.layers))
        if m.tp > 1:
            return [(self.root_params, m.shards), (s.layers_params / m.tp, m.shards // m.tp)]
        if m.ep > 1:
            return [(self.params - experts, m.shards), (experts / m.ep, m.shards // m.ep)]
        return [(self.params, m.shards)]

    @property
    def gathered_params(self) -> float:
        return sum(count for count, _ in self.gathered)

    @property
    def gathered_layer(self) -> float:
        """The largest layer as it is gathered."""
        s, m = self.shape, self.mesh
        experts = s.expert_params(s.layers - 1)
        return (s.largest_layer - experts) / m.tp + experts / max(m.tp, m.ep)

    @property
    def reduced(self) -> list[tuple[float, int]]:
        """Gradients that a backward pass makes, and the ranks that reduce them together."""
        return self.gathered if self.trained == self.params else [(self.trained, self.mesh.shards)]

    @property
    def adapter(self) -> bool:
        return 0 < self.trained < self.params

    @property
    def frozen(self) -> int:
        """Bytes of a parameter of the model itself: below an adapter it is kept in the dtype it is computed with."""
        return self.compute if self.adapter else self.stored

    @property
    def stored_bytes(self) -> int:
        """Of what FSDP's ranks store together."""
        return self.params * self.frozen + (self.trained * self.stored if self.adapter else 0)

    @property
    def copies(self) -> int:
        """Bytes of half-precision copies that stand in for float32 parameters while one rank computes."""
        if self.mesh.ranks > 1 or self.mesh.megatron or self.compute == self.stored:
            return 0
        return self.compute * (self.trained if self.adapter else self.params)

    @property
    def gradients_apart(self) -> bool:
        """Whether one rank adds a micro-batch's gradients to sums that are other tensors: its float32 gradients are
        those of copies, or its parameters are no float32."""
        return self.mesh.ranks == 1 and not self.mesh.megatron and min(self.compute, self.stored) < 4

    @property
    def reference_head(self) -> int:
        """Bytes of the reference's output layer beside the role's own."""
        return self.compute * self.shape.vocab * self.shape.hidden if self.full_kl else 0

    @cached_property
    def stages(self) -> list[Stage]:
        return self.mesh.stages(self.shape)

    def held(self, stage: Stage) -> Held:
        """Parameters of a stage before tensor and expert parallelism."""
        s = self.shape
        common = sum(s.common_params(i) for i in stage.layers)
        if stage.first:
            common += s.embedding_params
        if stage.last:
            head = s.hidden if self.value_head else s.embedding_params if self.mesh.pp > 1 else s.head_params
            common += s.hidden + head  # a tied output layer on another stage than the embedding is a copy
        return Held(common, sum(s.expert_params(i) for i in stage.layers))


def training_roles(c: RlxConfig, shapes: Mapping[str, ModelShape], gpu: Gpu) -> list[Role]:
    """actor, a reference on a pool of its own, critic, PRIME's reward model, teachers, and one that scores answers."""
    roles = [_role(c, learner(c), c.actor, shapes["actor"], gpu)]
    if has_own_reference(c):
        roles.append(_role(c, "ref", c.actor, shapes["actor"], gpu))
    if c.critic.enable:
        roles.append(_role(c, "critic", c.critic, shapes["critic"], gpu))
    if trains_process_rewards(c):
        roles.append(_role(c, "reward_model", role_settings(c, "reward_model"), shapes["actor"], gpu))
    return roles + [_role(c, name, role_settings(c, name), shapes[name], gpu) for name in frozen(c)]


def has_own_reference(c: RlxConfig) -> bool:
    return uses_reference(c) and c.ref.pool != c.actor.pool


def _role(c: RlxConfig, name: str, settings: ActorConfig | CriticConfig, shape: ModelShape, gpu: Gpu) -> Role:
    pool_name = c.ref.pool if name == "ref" else settings.pool
    pool: PoolConfig = c.cluster.pools[pool_name or ""]
    mesh, work, fsdp, megatron = mesh_of(settings, pool, shape), work_of(c), settings.fsdp_config, settings.megatron
    is_critic, taught, never_trained = isinstance(settings, CriticConfig), name in teachers(c), name in frozen(c)
    value_head = is_critic or name == SCORING or learner(c) == "reward_model"
    by_megatron = settings.strategy == "megatron"
    if by_megatron:
        work = replace(work, shares=False)
    share = settled(settings.ppo_mini_batch_size) * work.samples
    rule = (settings.ppo_micro_batch_size_per_gpu, settings.ppo_max_token_len_per_gpu)
    forward_rule = _log_prob_rule(c.rollout, rule) if name in ("actor", "ref") else rule
    reference_rule = _log_prob_rule(c.ref, rule)
    offload = megatron if by_megatron else fsdp
    params = shape.params - (shape.head_params - shape.hidden if value_head else 0)
    lora = c.model.lora_rank and name == "actor"
    adapter = shape.lora_params(c.model.lora_rank, c.model.target_modules) if lora else 0
    compute = 2 if by_megatron else BYTES[fsdp.dtype or ("float32" if gpu.is_cpu else "bfloat16")]
    between = fsdp.reshard_between_micro_batches
    gathers_once = not (compute * params > GATHERED_SHARE * gpu.memory if between is None else between)
    trained = 0 if name == "ref" or never_trained else adapter or params
    large = 4 * trained > GRADIENT_SHARE * gpu.memory
    reduces_each = mesh.shards > 1 and (large if fsdp.reduce_gradients is None else fsdp.reduce_gradients == "each")
    mini_batches = max(1, c.data.train_batch_size // settled(settings.ppo_mini_batch_size))
    on_gpu_in_half = not gpu.is_cpu and compute == 2 and not by_megatron
    compiled = on_gpu_in_half if fsdp.use_torch_compile is None else fsdp.use_torch_compile
    checkpointing = c.model.enable_gradient_checkpointing
    if isinstance(settings, CriticConfig) and settings.model.enable_gradient_checkpointing is not None:
        checkpointing = settings.model.enable_gradient_checkpointing
    return Role(
        name=name,
        pool=pool_name or "",
        shape=shape,
        mesh=mesh,
        work=work,
        value_head=value_head,
        trained=trained,
        stored=2 if by_megatron else compute if never_trained else BYTES[fsdp.model_dtype],
        compute=compute,
        optimizer=settings.optim.optimizer,
        update=cut(work, -(-share // mesh.dp), *rule, mesh.split),
        forward=cut(work, -(-work.sequences // mesh.dp), *forward_rule, mesh.split),
        reference=cut(work, -(-work.sequences // mesh.dp), *reference_rule, mesh.split),
        updates=mini_batches * settled(settings.ppo_epochs),
        mini_batches=mini_batches,
        checkpointing=megatron.recompute_granularity == "full" if by_megatron else checkpointing,
        selective=not by_megatron and checkpointing and c.model.recompute_granularity == "selective",
        liger=c.model.use_liger,
        compiled=compiled and not by_megatron,
        kept_logits=KEPT_LOGITS_SHARE * gpu.memory if on_gpu_in_half else 0.0,
        full_kl=name == "actor" and FULL_KL in kl_terms(c).values(),
        wide=(taught or name == "actor") and bool(teachers(c)) and c.distillation.loss_mode == FORWARD_TOPK,
        activations_in_host=c.model.enable_activation_offload,
        reshard=fsdp.reshard_after_forward and not gathers_once,
        gathers_once=gathers_once,
        reduces_each=reduces_each,
        param_offload=offload.param_offload,
        optimizer_offload=offload.optimizer_offload,
        tokens_split_by_tp=megatron.sequence_parallel if by_megatron else mesh.tp > 1,
        distributed_optimizer=megatron.use_distributed_optimizer,
    )


def _log_prob_rule(
    section: RefConfig | RolloutConfig, default: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    own = section.log_prob_micro_batch_size_per_gpu, section.log_prob_max_token_len_per_gpu
    return own if own != (None, None) else default
