"""All phases of an effective configuration on one kind of GPU, pool by pool and stage by stage."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from verl_core.config.schema import RlxConfig
from verl_core.planning import engine_memory, timing
from verl_core.planning.gpus import Gpu
from verl_core.planning.host import checkpoint_bytes, host_of_pool
from verl_core.planning.mesh import Mesh
from verl_core.planning.phases import Seat
from verl_core.planning.result import EnginePlan, PhasePlan, Plan, PoolPlan, Verdict, worst
from verl_core.planning.roles import Role
from verl_core.planning.shapes import ModelShape
from verl_core.planning.system import System, system_of

type Stages = tuple[int, ...]  # the pipeline stage of each role of a pool


def estimate(c: RlxConfig, shapes: Mapping[str, ModelShape], gpu: Gpu) -> Plan:
    """The plan of a configuration whose sizes divide, without advice."""
    system = system_of(c, shapes, gpu)
    pools, phases = [], []
    for name in c.cluster.pools:
        seats = _seats(system, name)
        pools.append(_pool(system, name, seats))
        alike = zip(*(seat.phases for seat in seats.values()), strict=True)
        phases += [max(same, key=lambda phase: phase.memory.total) for same in alike]
    engine = _engine(system, phases)
    verdicts: list[Verdict] = [pool.verdict for pool in pools]
    if engine and engine.sequences_held < 1:
        verdicts.append("does not fit")
    return Plan(
        gpu=gpu,
        models={role.name: _model(role) for role in system.roles},
        pools=pools,
        phases=phases,
        engine=engine,
        checkpoint=sum(checkpoint_bytes(role) for role in system.roles),
        step_seconds=step_seconds(phases),
        verdict=worst(verdicts),
        notes=list(_notes(system, engine)),
    )


def step_seconds(phases: Sequence[PhasePlan]) -> float:
    """Roles on one pool take turns, roles on different pools work together; generation, passes, updates and weights
    follow each other."""
    total = 0.0
    for group in (("rollout",), ("log-prob", "values"), ("update",), ("sync",)):
        by_pool: dict[str, float] = {}
        for phase in phases:
            if phase.phase in group:
                by_pool[phase.pool] = by_pool.get(phase.pool, 0.0) + phase.seconds
        total += max(by_pool.values(), default=0.0)
    return total


def _seats(system: System, pool: str) -> dict[Stages, Seat]:
    """Every distinct place in the pipelines of a pool's roles."""
    roles = system.on(pool)
    return {
        stages: Seat(system, pool, {role.name: role.stages[i] for role, i in zip(roles, stages, strict=True)})
        for stages in dict.fromkeys(_stages(roles, rank) for rank in range(roles[0].mesh.ranks if roles else 1))
    }


def _stages(roles: list[Role], rank: int) -> Stages:
    return tuple(rank // (role.mesh.ranks // role.mesh.pp) for role in roles)


def _pool(system: System, name: str, seats: dict[Stages, Seat]) -> PoolPlan:
    roles, settings = system.on(name), system.config.cluster.pools[name]
    memory = system.gpu.memory
    peak = max((seat.peak for seat in seats.values()), key=lambda phase: phase.pressure(memory))
    meshed = next((role for role in roles if role.mesh.megatron), None)
    ranks: list[dict[str, Any]] = []
    place = None
    if meshed:
        of_rank = [seats[_stages(roles, at.rank)].peak for at in meshed.mesh.coordinates]
        ranks = [
            {**vars(at), "phase": p.name, "bytes": p.memory.total}
            for at, p in zip(meshed.mesh.coordinates, of_rank, strict=True)
        ]
        place = meshed.mesh.coordinates[of_rank.index(peak)]
    return PoolPlan(
        name=name,
        nodes=settings.nodes,
        gpus=settings.gpus,
        peak=peak.memory.total,
        phase=peak.name,
        limit=peak.limit,
        verdict=peak.verdict(memory),
        host=max(host_of_pool(system, name, seat.stage_of) for seat in seats.values()),
        mesh=[line for role in roles for line in _mesh_lines(role)],
        tightest=place,
        ranks=ranks,
    )


def _mesh_lines(role: Role) -> Iterator[str]:
    m: Mesh = role.mesh
    if not m.megatron:
        shape = f"{role.name}: FSDP2, {m.ranks // m.shards} x {m.shards} (replicas x shards)"
        shared = {f"layers in {m.tp} parts": m.tp, f"experts over {m.ep}": m.ep, f"sequences over {m.sp}": m.sp}
        yield ", ".join([shape, *(words for words, ranks in shared.items() if ranks > 1)])
        return
    sizes = f"tp {m.tp} x cp {m.cp} x ep {m.ep} x dp {m.dp} x pp {m.pp}"
    yield f"{role.name}: Megatron, {sizes}, order tp-cp-ep-dp-pp"
    layers = "+".join(str(len(stage.layers)) for stage in role.stages)
    yield f"{role.name}: layers by stage {layers}, embedding on the first stage, output layer on the last"


def _model(role: Role) -> dict[str, float]:
    active = role.params - (role.shape.params - role.shape.active_params)
    return {"parameters": role.params, "active": active, "trained": role.trained}


def _engine(system: System, phases: Sequence[PhasePlan]) -> EnginePlan | None:
    engine = system.engine
    if engine is None:
        return None
    held = engine_memory.sequences_held(engine, system.gpu.memory)
    seconds = next(phase.seconds for phase in phases if phase.phase == "rollout")
    return EnginePlan(
        kind=engine.kind,
        pool=engine.pool,
        replicas=engine.replicas,
        gpus_per_replica=engine.tp,
        sequences_held=held,
        sequences_wanted=engine.at_once,
        preemption_likely=held < engine.at_once,
        tokens_per_second=engine.work.answers / seconds,
    )


def _notes(system: System, engine: EnginePlan | None) -> Iterator[str]:
    """What a reader would not guess from the table."""
    for role in system.roles:
        m = role.mesh
        if role.trained and not m.megatron and m.shards > 1 and role.update.count > 1:
            whole = f"{4 * sum(count for count, _ in role.reduced) / 1e9:.1f} GB in float32"
            yield (
                f"{role.name}: gradients are reduced after each of the {role.update.count} micro-batches of a "
                f"mini-batch, since all of them would take {whole} on every GPU"
                if role.reduces_each
                else f"{role.name}: gradients are reduced once a mini-batch, so that between its {role.update.count} "
                f"micro-batches they wait whole on every GPU ({whole})"
            )
        if m.tp > m.per_node:
            yield f"{role.name}: {m.tp} tensor-parallel ranks do not share a machine of {m.per_node} GPUs: slow"
    if engine and engine.sequences_held < 1:
        yield "the engine does not start: its share of the GPU holds the weights and not one sequence beside them"
    elif engine and engine.preemption_likely:
        yield (
            f"preemption is likely: the cache of a replica holds {engine.sequences_held} sequences of full length, "
            f"{engine.sequences_wanted} are to run at once"
        )
    if system.config.algorithm.filter_groups.enable:
        yield "dynamic sampling generates until a batch is full: rollout takes as many times longer as it asks for"
    if not system.gpu.is_cpu and timing.is_launch_bound(system.actor, system.gpu):
        yield "micro-batches are so small that launching kernels takes longer than computing: larger ones are faster"
