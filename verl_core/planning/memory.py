"""Memory of a training engine on one GPU, a function a component. Sources: docs/planning.md.

Widths: D hidden, Q and K query and key width, H heads, F feed-forward, V vocabulary; b bytes of a computed number;
t tokens on the GPU; s shards.
"""

from dataclasses import replace

from verl_core.planning.components import Components
from verl_core.planning.mesh import Stage
from verl_core.planning.roles import Role
from verl_core.planning.work import Micro

LOGIT_CHUNK = 1 << 27  # logits at once: CHUNK_ELEMENTS of verl_core/training/logprob.py
LOGIT_CHUNK_BYTES = 1 << 29  # the same of the GPU's kernels: CHUNK_BYTES of verl_core/training/logprob_triton.py
LOGIT_BYTES, LOGIT_BYTES_FORWARD = 16, 12  # of a logit at the peak, with and without a backward pass
KL_CHUNK, KL_BYTES = LOGIT_CHUNK // 2, 28  # pairs of logits at once in logprob_wide.py, and of a pair at the peak
NCCL = 0.5e9  # buffers of NCCL's communicators


def parameters(role: Role, stage: Stage) -> float:
    """Stored parameters: FSDP shards them; Megatron keeps a stage's, split by tensor and expert ranks."""
    m = role.mesh
    if not m.megatron:
        return role.stored_bytes / m.shards
    held = role.held(stage)
    return role.stored * (held.common / m.tp + held.experts / (m.ep * m.etp))


def saved_parameters(role: Role, stage: Stage) -> float:
    """Those of a checkpoint: an adapter's alone."""
    return role.trained * role.stored / role.mesh.shards if role.adapter else parameters(role, stage)


def gradients(role: Role, stage: Stage) -> float:
    """float32. Reduced once a mini-batch (set_requires_gradient_sync), they wait whole on every GPU between its
    micro-batches; reduced after each, or with one micro-batch, only shards are left. Megatron keeps its stage's."""
    m = role.mesh
    if m.megatron:
        return parameters(role, stage) / role.stored * 4
    if role.update.count == 1 or role.reduces_each:
        return 4.0 * role.trained / m.shards
    return 4.0 * sum(count for count, _ in role.reduced)


def standing_gradients(role: Role, stage: Stage) -> float:
    """Bytes of gradients outside an update: Megatron's buffers are allocated with the parameters and go to host memory
    with them; FSDP frees its gradients after each optimizer step."""
    return gradients(role, stage) if role.mesh.megatron and role.trained and not role.param_offload else 0.0


def optimizer(role: Role, stage: Stage) -> float:
    """AdamW: two moments of the parameter's dtype; in 8 bits, a byte and a float32 scale for each 256; none in host
    memory's. Muon: one for the layers' matrices. Megatron: float32 moments and master copy, spread over data-parallel
    ranks by the distributed optimizer."""
    m = role.mesh
    if m.megatron:
        held = role.held(stage)
        spread, experts_spread = (m.optimizer_ranks, m.expert_optimizer_ranks) if role.distributed_optimizer else (1, 1)
        return 12 * (held.common / m.tp / spread + held.experts / (m.ep * m.etp) / experts_spread)
    if role.optimizer == "adamw_host":
        return 0.0
    moments = 2.0 * role.trained
    if role.optimizer == "adamw_8bit":
        return moments * (1 + 4 / 256) / m.shards
    if role.optimizer == "muon":
        moments -= role.trained if role.adapter else role.shape.layers_params
    return moments * role.stored / m.shards


def saved_per_token(role: Role, layer: int) -> float:
    """Bytes that autograd keeps of one token in one layer without recomputation (after arXiv 2205.05198, section 4.1,
    counted anew for gated layers, flash attention and transformers' float32 norms). A compiled layer computes norms
    and what else is cheap again: measured, see docs/planning.md."""
    s, b = role.shape, role.compute
    if role.compiled:
        return b * (2 * s.q_width + 2 * s.kv_width) + 4 * s.heads + feed_forward_per_token(role, layer)
    norm = 2 * b if role.liger else 4 + 2 * b  # input (in float32 as well) and output
    norms = (4 if s.sandwich_norms else 2) * norm * s.hidden
    attention = b * (2 * s.q_width + 2 * s.kv_width) + 4 * s.heads
    if s.qk_norm:  # nobody keeps their output: rotating keeps sines and cosines only
        attention += (norm - b) * (s.q_width + s.kv_width)
    return norms + attention + feed_forward_per_token(role, layer)


def attention_per_token(role: Role) -> float:
    """What selective recomputation keeps: queries, keys, values, attention's output and statistics, and what the output
    projection makes of it."""
    s = role.shape
    return role.compute * (2 * s.q_width + 2 * s.kv_width + s.hidden) + 4 * s.heads


def feed_forward_per_token(role: Role, layer: int) -> float:
    """gate, up, activation and product of each expert a token takes; with Liger no activation. Routed tokens are also
    copied to their experts and back."""
    s, b = role.shape, role.compute
    tensors = 3 if role.liger else 4
    if not s.has_experts(layer):
        return tensors * b * s.ffn
    routed = s.experts_per_token * (tensors * s.expert_ffn + 2 * s.hidden)
    return b * (routed + tensors * s.shared_expert_ffn) + 8 * s.experts


def rows_per_token(role: Role) -> float:
    """What attention and feed-forward keep of the whole rows that FSDP's tensor-parallel ranks gather for them."""
    return 2.0 * role.compute * role.shape.hidden if role.mesh.tp > 1 and not role.mesh.megatron else 0.0


def flowing_per_token(role: Role, layer: int) -> float:
    """Gradients that pass through a layer at once: of the residual stream and the widest three of the feed-forward."""
    s = role.shape
    width = s.expert_ffn * s.experts_per_token + s.shared_expert_ffn if s.has_experts(layer) else s.ffn
    return role.compute * (2 * s.hidden + 3 * width)


def forward_per_token(role: Role, layer: int) -> float:
    """One layer's working set without gradients: residual stream, a norm in float32, and attention or feed-forward,
    whichever is wider."""
    s, b = role.shape, role.compute
    width = s.expert_ffn * s.experts_per_token + s.shared_expert_ffn if s.has_experts(layer) else s.ffn
    inner = max(2 * s.q_width + 2 * s.kv_width, 3 * width)
    return b * (2 * s.hidden + inner) + 4 * s.hidden


def in_flight(role: Role, stage: Stage, micro: Micro) -> float:
    """Micro-batches whose activations a pipeline stage holds: 1F1B has stages - index (arXiv 2104.04473), interleaved
    chunks 1 + (p - 1) / (p v) times the first stage's (arXiv 2205.05198, section 4.2.3)."""
    m = role.mesh
    if m.pp == 1:
        return 1.0
    more = 1 + (m.pp - 1) / (m.pp * m.chunks) if m.chunks > 1 else 1.0
    return min(m.pp - stage.index, micro.count) * more


def activations(role: Role, stage: Stage, micro: Micro) -> float:
    """What forward keeps for backward, and the working set of the layer that is differentiated."""
    m, b = role.mesh, role.compute
    tokens = micro.tokens / m.split
    widest = max(stage.layers, key=lambda i: saved_per_token(role, i))
    whole = saved_per_token(role, widest) * _tp_share(role) + rows_per_token(role)
    working = flowing_per_token(role, widest) / m.tp
    if role.checkpointing:
        residual = b * role.shape.hidden / (m.tp if role.tokens_split_by_tp else 1)
        if role.selective:
            residual += attention_per_token(role) / m.tp
        elif role.compiled:  # keeps what attention returns
            residual += (b * role.shape.q_width + 4 * role.shape.heads) / m.tp
        kept = residual * (2 if role.activations_in_host else len(stage.layers))
        working += whole
    else:
        per_layer = [saved_per_token(role, i) * _tp_share(role) + rows_per_token(role) for i in stage.layers]
        kept = sum(sorted(per_layer)[-2:]) if role.activations_in_host else sum(per_layer)
    working *= tokens
    if role.kept_logits and not role.value_head:  # logits are gone when the last layer is differentiated
        working = max(0.0, working - logits(role, stage, micro, backward=True))
    return tokens * kept * in_flight(role, stage, micro) + working


def activations_in_host(role: Role, stage: Stage, micro: Micro) -> float:
    """Bytes a GPU that wait in host memory instead (model.enable_activation_offload)."""
    if not role.activations_in_host:
        return 0.0
    per_token = role.compute * role.shape.hidden if role.checkpointing else saved_per_token(role, stage.layers[0])
    per_token += attention_per_token(role) if role.selective else 0.0
    return micro.tokens / role.mesh.split * per_token * len(stage.layers)


def forward_activations(role: Role, stage: Stage, micro: Micro) -> float:
    widest = max(forward_per_token(role, i) for i in stage.layers)
    widest = widest / (role.mesh.tp if role.tokens_split_by_tp else 1) + rows_per_token(role)
    return micro.tokens / role.mesh.split * widest


def logits(role: Role, stage: Stage, micro: Micro, backward: bool) -> float:
    """A chunk of logits and the hidden states of all answers, with a KL over the whole vocabulary the reference's as
    well. A value head has one number a token."""
    if not stage.last:
        return 0.0
    answers = micro.answers / role.mesh.split
    hidden = 2 * role.compute * role.shape.hidden * answers / (1 if role.mesh.megatron else role.mesh.tp)
    if role.value_head:
        return hidden + 16 * answers
    elements = answers * role.shape.vocab / role.mesh.tp
    if role.full_kl:
        hidden += KL_BYTES * min(elements, KL_CHUNK)
    plain = min(elements, LOGIT_CHUNK) * (LOGIT_BYTES if backward else LOGIT_BYTES_FORWARD)
    if role.kept_logits:
        return hidden + _kernels_logits(role, elements, backward) + (plain if role.wide else 0.0)
    return hidden + plain


def _kernels_logits(role: Role, elements: float, backward: bool) -> float:
    """Logits in the computing dtype, all of them where they may stay, else a chunk; their gradient takes their place.
    With it the output layer's own, of chunks in float32."""
    whole = role.compute * elements
    stay = backward and whole <= role.kept_logits
    weight = role.shape.vocab * role.shape.hidden if backward and not role.adapter else 0
    return (whole if stay else min(whole, LOGIT_CHUNK_BYTES)) + weight * (role.compute if stay else 4 + role.compute)


def communication(role: Role, stage: Stage, micro: Micro, backward: bool) -> float:
    """FSDP2: the root's and two layers' parameters gathered (or all, where they stay), a gather under
    way, gradients of the root and the float32 input of a reduce-scatter. Megatron: a gathered sequence, tokens on the
    way to experts and the next stage."""
    m, s, b = role.mesh, role.shape, role.compute
    own = NCCL if m.ranks > 1 else 0.0
    if m.megatron:
        tokens = micro.tokens / m.cp
        buffers = 2 * tokens * b * s.hidden if m.tp > 1 else 0.0
        if m.pp > 1:
            buffers += 2 * tokens * b * s.hidden / (m.tp if role.tokens_split_by_tp else 1)
        if m.ep > 1:
            buffers += 2 * tokens / m.tp * b * s.hidden * s.experts_per_token
        return own + buffers
    if m.ranks == 1:
        return own
    largest = max(role.gathered_layer, role.root_params)
    gathered = float(b * (role.root_params + 2 * role.gathered_layer if role.reshard else role.gathered_params))
    if m.shards > 1:
        gathered += b * largest
    if backward and not role.adapter:
        gathered += 2 * b * role.root_params  # gradients of embedding and output layer before they are reduced
        gathered += 4 * largest
    if m.sp > 1:
        gathered += 2 * b * micro.tokens / m.sp * (2 * s.q_width + 2 * s.kv_width)
    if m.ep > 1:  # tokens on their way to experts and back
        gathered += 2 * b * micro.tokens / m.sp * s.hidden * s.experts_per_token
    return own + gathered


def resting(role: Role, stage: Stage) -> float:
    """What an idle role leaves on the GPU."""
    held = 0.0 if role.param_offload else parameters(role, stage) + standing_gradients(role, stage)
    if role.trained and not role.optimizer_offload:
        held += optimizer(role, stage)
    return held


def update(role: Role, stage: Stage) -> Components:
    """The peak of an optimizer step."""
    used = Components(
        parameters=parameters(role, stage) + role.copies + role.reference_head,
        gradients=gradients(role, stage),
        optimizer=optimizer(role, stage),
        activations=activations(role, stage, role.update),
        logits=logits(role, stage, role.update, backward=True),
        communication=communication(role, stage, role.update, backward=True),
    )
    return replace(used, gradients=_apart(role, used)) if role.gradients_apart else used


def _apart(role: Role, used: Components) -> float:
    """Gradients of a rank whose sums are other tensors, when most is allocated: as a backward pass begins, or when it
    has ended, activations are gone, and a micro-batch's gradients are added to the sums. The gradients of one
    micro-batch alone are the parameters' own, or copied to them from copies'."""
    passing = used.activations + used.logits
    sums = used.gradients if role.update.count > 1 else 0.0
    given = sums or (role.stored * role.trained if role.copies else 0.0)
    return max(sums, given + role.compute * role.trained - passing)


def forward(role: Role, stage: Stage, micro: Micro) -> Components:
    """The peak of a pass without gradients."""
    return Components(
        parameters=parameters(role, stage) + role.copies + role.reference_head,
        gradients=standing_gradients(role, stage),
        optimizer=optimizer(role, stage) if role.trained and not role.optimizer_offload else 0.0,
        activations=forward_activations(role, stage, micro),
        logits=logits(role, stage, micro, backward=False),
        communication=communication(role, stage, micro, backward=False),
    )


def at_rest(role: Role, stage: Stage, with_optimizer: bool, buffers: float = 0.0) -> Components:
    """Parameters on the GPU without a pass: weights are handed over, or written to a checkpoint."""
    wanted = role.trained and (with_optimizer or not role.optimizer_offload)
    return Components(
        parameters=parameters(role, stage),
        gradients=standing_gradients(role, stage),
        optimizer=optimizer(role, stage) if wanted else 0.0,
        communication=buffers + (NCCL if role.mesh.ranks > 1 else 0.0),
    )


def _tp_share(role: Role) -> float:
    """What tensor parallelism leaves of a layer's activations; without sequence_parallel norms stay whole. Roughly a
    quarter of a layer's bytes are the norms'."""
    tp = role.mesh.tp
    return 1 / tp if role.tokens_split_by_tp or tp == 1 else 0.25 + 0.75 / tp
