"""Bytes that leave or enter one GPU in a phase, by the way they take: link (NVLink or PCIe to a neighbour), network,
pcie (host memory), disk."""

from collections import defaultdict
from collections.abc import Mapping

from verl_core.planning.engine_memory import Engine
from verl_core.planning.memory import optimizer, parameters, saved_parameters
from verl_core.planning.mesh import Stage
from verl_core.planning.roles import Role
from verl_core.planning.work import Micro

DELTA_SHARE = 0.03  # of a bf16 model's bytes that change in a step at RL's learning rates, with their places

type Traffic = Mapping[str, float]


def step(role: Role, stage: Stage) -> Traffic:
    """All optimizer steps of a step."""
    mini_batch = joined(_passes(role, stage, role.update, backward=True), _reduction(role, stage))
    return {way: role.updates * n for way, n in mini_batch.items()}


def forward(role: Role, stage: Stage, micro: Micro) -> Traffic:
    """One pass over the whole batch without gradients."""
    return _passes(role, stage, micro, backward=False)


def residency(role: Role, stage: Stage, with_optimizer: bool, calls: int = 1) -> Traffic:
    """To the GPU and back to host memory around each call, for what waits there."""
    waiting = parameters(role, stage) if role.param_offload else 0.0
    if with_optimizer and role.optimizer_offload:
        waiting += optimizer(role, stage)
    return {"pcie": 2.0 * waiting * calls} if waiting else {}


def swapped_reference(role: Role, stage: Stage) -> Traffic:
    """The snapshot in and the present weights out, and both back."""
    return {"pcie": 4.0 * parameters(role, stage)}


def sync(role: Role, engine: Engine, transport: str) -> Traffic:
    """New weights on the way to the engine, as a GPU of the busier side sees them. A trainer with shards gathers them
    first: in the stored dtype in place, in bfloat16 otherwise."""
    m = role.mesh
    spread = m.ranks // m.dp if m.megatron else m.shards
    width = role.frozen if transport == "inplace" else engine.bytes
    whole = width * role.params
    moved: defaultdict[str, float] = defaultdict(float)
    if spread > 1:
        moved[_way(m.per_node, spread)] += whole * (spread - 1) / spread
    if transport == "broadcast":
        moved["link" if m.ranks + engine.ranks <= m.per_node else "network"] += engine.weights
    elif transport == "delta":
        moved["network"] += DELTA_SHARE * engine.weights
    elif transport == "disk":
        moved["disk"] += whole / m.ranks + engine.weights
    return moved


def checkpoint(role: Role, stage: Stage) -> Traffic:
    return {"disk": saved_parameters(role, stage) + (optimizer(role, stage) if role.trained else 0.0)}


def joined(*parts: Traffic) -> dict[str, float]:
    total: dict[str, float] = {}
    for way, n_bytes in (item for part in parts for item in part.items()):
        total[way] = total.get(way, 0.0) + n_bytes
    return total


def _way(per_node: int, group: int) -> str:
    """What connects a group of so many neighbouring ranks: they fit on one machine, or not."""
    return "link" if group <= per_node else "network"


def _around(groups: list[tuple[float, int]]) -> float:
    """Numbers that a rank sends when parameters are gathered, or their gradients reduced, among so many ranks each."""
    return sum(count * (ranks - 1) / ranks for count, ranks in groups)


def _passes(role: Role, stage: Stage, micro: Micro, backward: bool) -> Traffic:
    """Forward, and backward with recomputation, of all micro-batches of a share."""
    m, s, b = role.mesh, role.shape, role.compute
    tokens = micro.tokens * micro.count / m.split
    rounds = (3 if role.checkpointing else 2) if backward else 1  # of a layer's collectives
    layers = len(stage.layers)
    moved: defaultdict[str, float] = defaultdict(float)
    if not m.megatron and m.shards > 1:
        gathers = 1 if role.gathers_once else micro.count * (2 if backward and role.reshard else 1)
        moved[_way(m.per_node, m.shards)] += gathers * b * _around(role.gathered)
    if m.sp > 1:  # arXiv 2309.14509: queries, keys, values there and the output back
        width = 2 * s.q_width + 2 * s.kv_width
        moved[_way(m.per_node, m.sp)] += rounds * tokens * layers * b * width * (m.sp - 1) / m.sp
    if m.tp > 1:  # arXiv 2205.05198: a gather and a scatter around attention and around the feed-forward
        moved[_way(m.per_node, m.tp)] += rounds * 4 * tokens * layers * b * s.hidden * (m.tp - 1) / m.tp
    if m.cp > 1:
        moved[_way(m.per_node, m.tp * m.cp)] += rounds * tokens * layers * b * 2 * s.kv_width * (m.cp - 1)
    if m.ep > 1:
        sent = 2 * s.experts_per_token * b * s.hidden * (m.ep - 1) / m.ep
        routed = sum(s.has_experts(i) for i in stage.layers)
        moved[_way(m.per_node, m.etp * m.ep)] += rounds * tokens / m.tp * routed * sent
    if m.pp > 1:
        hops = (2 if backward else 1) * m.chunks
        sent = tokens * b * s.hidden / (m.tp if role.tokens_split_by_tp else 1)
        moved[_way(m.per_node, m.ranks)] += hops * sent  # the busiest hop: some stage's neighbour is on another machine
    return moved


def _reduction(role: Role, stage: Stage) -> Traffic:
    """Gradients over the ranks that share a copy, once an optimizer step or after each micro-batch, and over replicas
    once; Megatron gathers the new parameters after it."""
    m = role.mesh
    if not m.megatron:
        if m.ranks == 1:
            return {}
        times = role.update.count if role.reduces_each else 1
        moved = {_way(m.per_node, m.shards): times * 4 * _around(role.reduced)}
        if m.ranks > m.shards:
            moved = joined(moved, {_way(m.per_node, m.ranks): 2 * 4 * role.trained / m.shards})
        return moved
    if m.optimizer_ranks == 1:
        return {}
    return {_way(m.per_node, m.tp * m.optimizer_ranks): 3 * parameters(role, stage)}
