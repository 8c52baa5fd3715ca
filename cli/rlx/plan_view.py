"""A plan as people read it: where it runs, a table of memory by role and phase, the verdict and what would help."""

from collections.abc import Iterator

from rlx import ui
from verl_core.planning.components import NAMES
from verl_core.planning.result import Plan, PoolPlan

_SHORT = {
    "parameters": "params",
    "gradients": "grads",
    "optimizer": "optim",
    "activations": "activ",
    "kv_cache": "cache",
    "communication": "comm",
}
_LEGEND = (
    "logits: with the loss's buffers; comm: gathered parameters, buffers of collectives; reserve: CUDA context and "
    "graphs,\nfragmentation; others: what other roles leave on the GPU. Times hold for answers of full length."
)


def show(plan: Plan, profile: str, reason: str) -> None:
    """Print a plan on stdout."""
    ui.out(f"{profile}: {_gpus(plan)} x {plan.gpu.name}, {ui.size(plan.gpu.memory)} each ({reason})")
    ui.out(", ".join(f"{role} {_count(model)}" for role, model in plan.models.items()))
    for pool in plan.pools:
        for line in _pool(pool):
            ui.out(line)
    ui.out("")
    _table(plan)
    ui.out(f"\n{_LEGEND}\n")
    ui.pairs([*_facts(plan)])
    for text in plan.notes:
        ui.note(text)
    ui.out(f"\nverdict: {plan.verdict}")
    for pool in plan.pools:
        ui.out(f"  pool {pool.name} {pool.verdict}: {_nearness(plan, pool.peak, pool.phase, pool.limit)}")
    if plan.advice:
        ui.out("cheapest changes that help:")
        for advice in plan.advice:
            ui.out(f"  {advice.words}")
            near = _nearness(plan, advice.peak, advice.phase, advice.limit)
            cost = f"step {_seconds(advice.step_seconds)}, {advice.slowdown:.2f} times the GPU time"
            ui.out(f"    {advice.verdict}: {near}; {cost}")
    elif plan.verdict != "fits":
        ui.out(
            "no single setting or pair of settings that rlx tries makes it fit: take a larger GPU or a smaller model"
        )


def _gpus(plan: Plan) -> str:
    return " + ".join(f"{p.nodes} x {p.gpus}" if p.nodes > 1 else str(p.gpus) for p in plan.pools)


def _count(model: dict[str, float]) -> str:
    text = f"{_number(model['parameters'])} parameters"
    if model["active"] < model["parameters"]:
        text += f" ({_number(model['active'])} active)"
    if 0 < model["trained"] < model["parameters"]:
        text += f", {_number(model['trained'])} trained"
    return text


def _pool(pool: PoolPlan) -> Iterator[str]:
    machines = f"{pool.nodes} machines x {pool.gpus}" if pool.nodes > 1 else f"{pool.gpus}"
    yield f"pool {pool.name}: {machines} GPUs" if pool.nodes * pool.gpus > 1 else f"pool {pool.name}: 1 GPU"
    yield from (f"  {line}" for line in pool.mesh)
    if pool.tightest:
        yield f"  tightest: {pool.tightest}"


def _table(plan: Plan) -> None:
    most = max(phase.memory.total for phase in plan.phases)
    unit, divisor = ("GB", 1e9) if most >= 1e9 else ("MB", 1e6)
    several = len(plan.pools) > 1
    names = [name for name in NAMES if any(getattr(phase.memory, name) for phase in plan.phases)]
    header = [*(["pool"] if several else []), "role", "phase", *(_SHORT.get(name, name) for name in names)]
    rows = [
        [
            *([phase.pool] if several else []),
            phase.role,
            phase.phase,
            *(f"{getattr(phase.memory, name) / divisor:.1f}" for name in names),
            f"{phase.memory.total / divisor:.1f}",
            _seconds(phase.seconds),
        ]
        for phase in plan.phases
    ]
    ui.table([*header, f"{unit} a GPU", "time"], rows)


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "step", f"about {_seconds(plan.step_seconds)}, {_shares(plan)}"
    moved: dict[str, float] = {}
    for way, n_bytes in (item for phase in plan.phases if phase.phase != "checkpoint" for item in phase.moved.items()):
        moved[way] = moved.get(way, 0.0) + n_bytes
    if moved:
        yield "moved", ", ".join(f"{ui.size(n)} by {way}" for way, n in moved.items()) + " a step and GPU"
    for pool in plan.pools:
        name = f" in pool {pool.name}" if len(plan.pools) > 1 else ""
        yield "host memory", f"{ui.size(pool.host)} a machine{name}"
    yield "checkpoint", f"{ui.size(plan.checkpoint)} on disk"
    if engine := plan.engine:
        yield (
            "engine",
            f"{engine.kind}, {engine.replicas} x {engine.gpus_per_replica} GPU, room for {engine.sequences_held} "
            f"sequences of full length on each replica, about {engine.tokens_per_second:,.0f} tokens/s in all",
        )


def _shares(plan: Plan) -> str:
    """Which phases a step is made of, the longest first."""
    parts = [phase for phase in plan.phases if phase.phase != "checkpoint"]
    whole = sum(phase.seconds for phase in parts) or 1.0
    longest = sorted(parts, key=lambda phase: -phase.seconds)[:3]
    return ", ".join(f"{phase.name} {phase.seconds / whole:.0%}" for phase in longest)


def _nearness(plan: Plan, peak: float, phase: str, limit: float) -> str:
    memory = plan.gpu.memory
    return f"{ui.size(peak)} of {ui.size(memory)} ({peak / memory:.0%}) in {phase}, where above {limit:.0%} is tight"


def _number(n: float) -> str:
    return f"{n / 1e9:.2f}B" if n >= 1e9 else f"{n / 1e6:.1f}M" if n >= 1e6 else f"{n / 1e3:.0f}k"


def _seconds(seconds: float) -> str:
    if seconds >= 5940:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 100 else f"{seconds:.1f} s"
