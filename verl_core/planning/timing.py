"""Seconds a phase takes on the busiest GPU, from FLOP, bytes and the efficiencies below. All sequences at full length.
Anchors and sources: docs/planning.md; issues on GPU training and engines measure and correct them."""

from collections.abc import Mapping

from verl_core.planning.engine_memory import Engine, sequences_held
from verl_core.planning.flops import Flops
from verl_core.planning.gpus import Gpu
from verl_core.planning.memory import optimizer
from verl_core.planning.mesh import Stage
from verl_core.planning.roles import Role
from verl_core.planning.shapes import ModelShape
from verl_core.planning.work import Micro

# Training: share of the peak FLOP/s that matrices reach, 0.6 D / (D + 500): 0.39 at D = 896, 0.45 at 1536, 0.48 at
# 2048 against 0.39, 0.50, 0.53 measured on an H200 (packed 16k tokens, compiled layers).
WIDE, HALF_WIDTH = 0.6, 500
LAUNCH = 0.2e-3  # a layer's forward at the least: about 25 kernels at 8 us; not measured
EXPERTS_SHARE = 0.75  # of that for a mixture of experts (30B-A3B: MFU 0.31 to 0.40 published)
COLLECTIVE = 0.7  # share of a link's or network's rate that collectives reach
# Decoding: share of the memory bandwidth that is reached, and what a step costs beside it (a sequence's part is shared
# by a replica's GPUs), fitted to vLLM's 83,900 tokens/s through rlx on one H200 (256 sequences, 0.5B, graphs).
DECODE_BANDWIDTH, STEP, STEP_PER_SEQUENCE = 0.7, 1.0e-3, 3e-6
EAGER_LAYER, TP_LAYER = 0.25e-3, 10e-6  # more a layer without graphs; two all-reduces of a tensor-parallel layer
HF_LAYER = 0.5e-3  # a layer's launches in plain torch (transformers' generate: 2.7 ms measured); not measured for ours
PREFILL_SHARE = 0.5  # of peak FLOP/s
# Weights to the engine: fixed seconds, and bytes/s beside it.
SYNC_FIXED = 0.12  # IPC and NCCL on one machine took 0.10 to 0.19 s for 1 GB
BROADCAST_NETWORK = 3.5e9  # whole updates over the network: 7B in 5.5 to 6.0 s, 32B in 17.7 to 18.1 s published
HOST_BANDWIDTH = 100e9  # of a machine's memory, for an optimizer that steps there; not measured
DISK = 2e9  # a machine's share of a file system


def utilization(shape: ModelShape) -> float:
    """Share of the peak FLOP/s that a training pass reaches."""
    return WIDE * shape.hidden / (shape.hidden + HALF_WIDTH) * (EXPERTS_SHARE if shape.experts else 1.0)


def is_launch_bound(role: Role, gpu: Gpu) -> bool:
    """Whether micro-batches are so small that a GPU waits for its kernels to be launched."""
    return _computing(role, gpu) < _launching(role, role.update, role.mini_batches)


def update_seconds(role: Role, stage: Stage, gpu: Gpu, moved: Mapping[str, float]) -> float:
    """Forward, backward (twice as much) and recomputation, the optimizer's passes over memory, and what collectives
    cannot hide behind: FSDP's gathers overlap with computing, Megatron's wait in between, and its pipeline is filled
    and drained."""
    times = _passes(role) + (_wide_share(role) if role.selective else role.checkpointing)
    epochs = role.updates / role.mini_batches
    computing = times * epochs * max(_computing(role, gpu), _launching(role, role.update, role.mini_batches))
    m = role.mesh
    if m.pp > 1:
        computing *= 1 + (m.pp - 1) / (role.update.count * m.chunks)
    step = 28 if not m.megatron else 30  # bytes read and written a parameter: value, gradient, two moments
    stepping = role.updates * step * _stepped(role, stage) / gpu.memory_bandwidth
    if role.optimizer == "adamw_host":  # weights and gradients over, weights back, and the step at the host's pace
        stepping = role.updates * _stepped(role, stage) * (3 * role.stored / gpu.pcie + step / HOST_BANDWIDTH)
    return _overlapped(role, computing, moving(moved, gpu)) + stepping


def _wide_share(role: Role) -> float:
    """Of a layer's products, those with gate and up: what selective recomputation computes again."""
    s = role.shape
    layers = range(s.layers)
    wide = sum(s.expert_params(i) if s.has_experts(i) else 3 * s.hidden * s.ffn for i in layers)
    return 2 / 3 * wide / max(1, s.layers_params)


def forward_seconds(role: Role, micro: Micro, gpu: Gpu, moved: Mapping[str, float]) -> float:
    computing = max(_computing(role, gpu), _launching(role, micro, 1))
    if role.mesh.pp > 1:
        computing *= 1 + (role.mesh.pp - 1) / micro.count
    return _overlapped(role, computing, moving(moved, gpu))


def rollout_seconds(engine: Engine, gpu: Gpu) -> float:
    """Every sequence to its full length: prefill of each prompt once, then a token a sequence a step."""
    s, work = engine.shape, engine.work
    running = running_sequences(engine, gpu)
    prompts = -(-work.prompts // engine.replicas)
    prefill = prompts * Flops.forward(s).sequence(work.prompt, 1)
    share = s.experts_per_token / s.experts if s.experts else 1.0
    touched = 1 - (1 - share) ** running  # share of the experts that a step reads
    expert_weights = engine.bytes * sum(s.expert_params(i) for i in range(s.layers)) / engine.tp
    read = engine.weights - (1 - touched) * expert_weights
    read += running * engine.cache_per_token * s.remembered(work.prompt + work.response // 2)
    computing = 2 * s.active_params * running / engine.tp / (gpu.flops * PREFILL_SHARE)
    if engine.kind == "hf":
        beside = HF_LAYER * s.layers
    else:
        beside = STEP + (EAGER_LAYER * s.layers if engine.eager else 0)
    beside += STEP_PER_SEQUENCE * running / engine.tp + (TP_LAYER * s.layers if engine.tp > 1 else 0)
    step = max(read / (DECODE_BANDWIDTH * gpu.memory_bandwidth), computing) + beside
    return prefill / engine.tp / (gpu.flops * PREFILL_SHARE) + engine.each * work.response / running * step


def running_sequences(engine: Engine, gpu: Gpu) -> int:
    """Sequences a replica runs at once: what it may, as far as the cache holds them at half their answer; at least one,
    though an engine without room for it does not start."""
    room = sequences_held(engine, gpu.memory)
    half = engine.work.prompt + engine.work.response / 2
    return max(1, min(engine.at_once, int(room * engine.model_len / half)))


def sync_seconds(role: Role, engine: Engine, gpu: Gpu, transport: str, moved: Mapping[str, float]) -> float:
    if transport == "inplace":
        return moving(moved, gpu) + 2 * engine.weights / gpu.memory_bandwidth
    apart = engine.bytes * role.params / BROADCAST_NETWORK if moved.get("network") and transport == "broadcast" else 0
    return SYNC_FIXED + max(moving(moved, gpu, engine.per_node), apart)


def moving(moved: Mapping[str, float], gpu: Gpu, per_node: int = 1) -> float:
    """Seconds for a GPU's bytes by the way they take; `per_node` GPUs of a machine write to disk at the same time."""
    rate = {
        "link": COLLECTIVE * gpu.link,
        "network": COLLECTIVE * gpu.network,
        "pcie": gpu.pcie,
        "disk": DISK / per_node,
    }
    return sum(n_bytes / rate[way] for way, n_bytes in moved.items())


def _computing(role: Role, gpu: Gpu) -> float:
    """One forward pass over the step's sequences, dealt out evenly to all ranks."""
    work = role.work
    cost = Flops.forward(role.shape, head=not role.value_head)
    flops = work.sequences * cost.sequence(work.length, work.response)
    if work.shares:
        flops -= (work.sequences - work.prompts) * cost.sequence(work.prompt, 0)
    return flops / role.mesh.ranks / (gpu.flops * utilization(role.shape))


def _launching(role: Role, micro: Micro, shares: int) -> float:
    """What the same pass takes at the least, launching each layer for each micro-batch of `shares` shares."""
    return LAUNCH * role.shape.layers / role.mesh.pp * micro.count * shares


def _passes(role: Role) -> float:
    """Forward and backward in forward passes: three, and fewer where the model below an adapter takes no gradient."""
    if not role.adapter:
        return 3.0
    cost, work = Flops.forward(role.shape), role.work
    update = cost.update(role.trained)
    return update.sequence(work.length, work.response) / cost.sequence(work.length, work.response)


def _stepped(role: Role, stage: Stage) -> float:
    """Parameters that a GPU's optimizer updates."""
    if role.mesh.megatron:
        return optimizer(role, stage) / 12
    return role.trained / role.mesh.shards


def _overlapped(role: Role, computing: float, communicating: float) -> float:
    """FSDP's gathers run beside the layers; layers wait for what tensor- and expert-parallel ranks exchange."""
    m = role.mesh
    return computing + communicating if m.megatron or m.tp * m.ep > 1 else max(computing, communicating)
