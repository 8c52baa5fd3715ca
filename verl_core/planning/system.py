"""What runs where: the roles and the rollout engine of an effective configuration on one kind of GPU."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from verl_core.config.effective import uses_reference, uses_rollout
from verl_core.config.model_roles import SCORING
from verl_core.config.schema import RlxConfig
from verl_core.planning.engine_memory import Engine, engine_of
from verl_core.planning.gpus import Gpu
from verl_core.planning.roles import Role, has_own_reference, training_roles
from verl_core.planning.shapes import ModelShape
from verl_core.planning.work import Micro


@dataclass(frozen=True)
class Pass:
    """A pass over the batch without gradients."""

    role: str
    """As a reader knows it: the reference may be a snapshot inside the actor."""
    phase: str
    micro: Micro
    swaps: bool = False
    """A snapshot takes the weights' place for its length."""
    beside_engine: bool = False
    """The engine on the same GPU is awake, with its cache."""


@dataclass(frozen=True)
class System:
    config: RlxConfig
    gpu: Gpu
    roles: list[Role]
    """The actor, or what is trained in its place, first."""
    engine: Engine | None

    @property
    def actor(self) -> Role:
        return self.roles[0]

    def on(self, pool: str) -> list[Role]:
        return [role for role in self.roles if role.pool == pool]

    def engine_on(self, pool: str) -> Engine | None:
        return self.engine if self.engine and self.engine.pool == pool else None

    def passes(self, role: Role) -> Iterator[Pass]:
        """The passes that a role's engine makes between generation and updates."""
        if role.name == "critic":
            yield Pass("critic", "values", role.forward)
        if role.name == SCORING:
            yield Pass("reward model", "scores", role.forward, beside_engine=True)
        if role.value_head:  # one that learns from pairs makes none
            return
        if role.name not in ("actor", "ref"):
            yield Pass(role.name, "log-prob", role.forward)
        if role.name == "reward_model":
            yield Pass("reward_model ref", "log-prob", role.forward, swaps=True)
        if role.name == "actor" and self.engine and not self._engine_log_probs():
            yield Pass("actor", "log-prob", role.forward)
        if role.name == "ref" or (role.name == "actor" and self.reference_in_actor):
            yield Pass("ref", "log-prob", role.reference, swaps=role.name == "actor" and not role.adapter)

    @property
    def reference_in_actor(self) -> bool:
        """Whether the reference is a snapshot of the actor's weights (or, with an adapter, the actor without it)."""
        return uses_reference(self.config) and not has_own_reference(self.config)

    def _engine_log_probs(self) -> bool:
        """Whether old log-probs come from the engine; see rollout.old_log_prob."""
        r = self.config.rollout
        own = r.top_p == 1.0 and r.top_k == -1 and r.engine == "hf"
        own = own and self.config.algorithm.rollout_correction.rollout_is is None
        float32 = self.engine is not None and self.engine.bytes == 4 and self.actor.compute == 4
        return r.old_log_prob == "rollout" or (r.old_log_prob == "auto" and own and float32)


def system_of(c: RlxConfig, shapes: Mapping[str, ModelShape], gpu: Gpu) -> System:
    roles = training_roles(c, shapes, gpu)
    return System(c, gpu, roles, engine_of(c, shapes["actor"], roles[0], gpu.is_cpu) if uses_rollout(c) else None)
