"""The phases of a step on one GPU of a pool, in their order, and the checkpoint after it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from verl_core.planning import engine_memory, memory, timing, traffic
from verl_core.planning.components import CONTEXT, Components
from verl_core.planning.mesh import Stage
from verl_core.planning.result import PhasePlan
from verl_core.planning.roles import Role
from verl_core.planning.system import Pass, System


class Seat:
    """A GPU of `pool` whose roles have the pipeline stages `stage_of`."""

    def __init__(self, system: System, pool: str, stage_of: dict[str, Stage]):
        self.system, self.pool, self.stage_of = system, pool, stage_of
        self.gpu, self.roles, self.engine = system.gpu, system.on(pool), system.engine_on(pool)

    @cached_property
    def phases(self) -> list[PhasePlan]:
        return [*self._in_order()]

    def _in_order(self) -> Iterator[PhasePlan]:
        if self.engine:
            yield self._rollout()
        for role in self.roles:
            for what in self.system.passes(role):
                yield self._forward(role, what)
        trained = [role for role in self.roles if role.trained]
        for role in trained:
            yield self._update(role)
        if self.system.actor in self.roles and self.system.engine:
            yield self._sync(self.system.actor)
        for role in trained:
            yield self._checkpoint(role)

    @cached_property
    def peak(self) -> PhasePlan:
        """The phase nearest to its limit."""
        return max(self.phases, key=lambda phase: phase.pressure(self.gpu.memory))

    def _rollout(self) -> PhasePlan:
        assert self.engine is not None
        used = engine_memory.generating(self.engine, self.gpu.memory)
        beside = sum(memory.resting(role, self.stage_of[role.name]) for role in self.roles)
        if self.engine.kind == "hf":
            used = used.with_reserve(self.gpu.is_cpu)
        elif self.roles:  # the engine's own context is inside its share; the trainer's process is another
            beside += CONTEXT + (memory.NCCL if self.engine.ranks > 1 else 0.0)
        used = replace(used, others=beside)
        seconds = timing.rollout_seconds(self.engine, self.gpu)
        return PhasePlan("rollout", "rollout", self.pool, used, seconds, {}, fixed=self.engine.kind != "hf")

    def _forward(self, role: Role, what: Pass) -> PhasePlan:
        stage = self.stage_of[role.name]
        passing = traffic.forward(role, stage, what.micro)
        around = traffic.residency(role, stage, with_optimizer=False)
        if what.swaps:
            around = traffic.joined(around, traffic.swapped_reference(role, stage))
        seconds = timing.forward_seconds(role, what.micro, self.gpu, passing)
        return self._phase(
            role,
            what.phase,
            memory.forward(role, stage, what.micro),
            seconds,
            passing,
            around,
            engine=self._awake() if what.beside_engine else None,
            shown=what.role,
        )

    def _update(self, role: Role) -> PhasePlan:
        stage = self.stage_of[role.name]
        passing = traffic.step(role, stage)
        around = traffic.residency(role, stage, with_optimizer=True, calls=role.updates)
        seconds = timing.update_seconds(role, stage, self.gpu, passing)
        return self._phase(role, "update", memory.update(role, stage), seconds, passing, around)

    def _sync(self, actor: Role) -> PhasePlan:
        """A gathered matrix at a time on its way to an engine that has its weights' room, but no cache yet."""
        stage, engine = self.stage_of["actor"], self.system.engine
        assert engine is not None
        transport = str(self.system.config.weights.type)
        passing = traffic.sync(actor, engine, transport)
        around = traffic.residency(actor, stage, with_optimizer=False)
        s = actor.shape
        matrix = max(s.embedding_params, s.one_expert_params) * actor.frozen if actor.mesh.ranks > 1 else 0.0
        folded = 8.0 * s.hidden * max(s.ffn, s.q_width) if actor.adapter else 0.0  # W and W + BA in float32
        used = memory.at_rest(actor, stage, with_optimizer=False, buffers=matrix + folded)
        seconds = timing.sync_seconds(actor, engine, self.gpu, transport, passing)
        awake = engine_memory.awake_without_cache(self.engine) if self.engine else 0.0
        return self._phase(actor, "sync", used, seconds, passing, around, engine=awake)

    def _checkpoint(self, role: Role) -> PhasePlan:
        """Written at the end of a step, when the engine is awake again: vllm and sglang hold their cache by then."""
        stage = self.stage_of[role.name]
        written = traffic.checkpoint(role, stage)
        around = traffic.residency(role, stage, with_optimizer=True)
        seconds = timing.moving(written, self.gpu, role.mesh.per_node)
        used = memory.at_rest(role, stage, with_optimizer=True)
        return self._phase(role, "checkpoint", used, seconds, written, around, engine=self._awake())

    def _awake(self) -> float | None:
        """What an engine holds that is awake and idle: vllm and sglang their cache, hf no more than asleep."""
        if self.engine is None or self.engine.kind == "hf":
            return None
        return engine_memory.generating(self.engine, self.gpu.memory).total

    def _phase(
        self,
        role: Role,
        name: str,
        used: Components,
        seconds: float,
        passing: traffic.Traffic,
        around: traffic.Traffic,
        *,
        engine: float | None = None,
        shown: str | None = None,
    ) -> PhasePlan:
        """`around`: moved before and after, when nothing else goes on. `engine`: what it holds; None: asleep."""
        if engine is None:
            engine = engine_memory.asleep(self.engine) if self.engine else 0.0
        idle = sum(memory.resting(other, self.stage_of[other.name]) for other in self.roles if other is not role)
        used = replace(used, others=idle + engine).with_reserve(self.gpu.is_cpu)
        seconds += timing.moving(around, self.gpu)
        return PhasePlan(
            shown or role.name,
            name,
            self.pool,
            used,
            seconds,
            traffic.joined(passing, around),
            fixed=name == "checkpoint",
        )
