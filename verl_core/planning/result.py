"""What a plan says."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from verl_core.planning.components import Components
from verl_core.planning.gpus import Gpu
from verl_core.planning.mesh import Coordinates

type Verdict = Literal["fits", "tight", "does not fit"]
_ORDER: tuple[Verdict, ...] = ("fits", "tight", "does not fit")
# Shares of the memory above which it is tight: what lies there from the start is better known than what comes later.
TIGHT_FIXED, TIGHT = 0.95, 0.85


def worst(verdicts: list[Verdict]) -> Verdict:
    return max(verdicts, key=_ORDER.index)


@dataclass(frozen=True)
class PhasePlan:
    """One role in one phase, on the GPU of its pool that needs most."""

    role: str
    phase: str
    pool: str
    memory: Components
    seconds: float
    """Of one step; of one checkpoint, which not every step writes."""
    moved: dict[str, float]
    """Bytes that a GPU sends or takes, by way: link, network, pcie, disk."""
    fixed: bool = False
    """Everything on the GPU was laid out at the start: an engine's share, resting roles."""

    @property
    def limit(self) -> float:
        """Share of the memory above which it is tight."""
        return TIGHT_FIXED if self.fixed else TIGHT

    @property
    def name(self) -> str:
        return self.phase if self.role == self.phase else f"{self.role} {self.phase}"

    def pressure(self, memory: float) -> tuple[bool, float]:
        """Whether it is too much, and how near to tight (1: there)."""
        return self.memory.total > memory, self.memory.total / (self.limit * memory)

    def verdict(self, memory: float) -> Verdict:
        too_much, near = self.pressure(memory)
        return "does not fit" if too_much else "tight" if near > 1 else "fits"


@dataclass(frozen=True)
class EnginePlan:
    """What the rollout engine can hold."""

    kind: str
    pool: str
    replicas: int
    gpus_per_replica: int
    sequences_held: int
    """Sequences of full length whose keys and values fit at once on a replica."""
    sequences_wanted: int
    """Sequences a replica would run at once."""
    preemption_likely: bool
    tokens_per_second: float
    """Of all replicas together."""


@dataclass(frozen=True)
class PoolPlan:
    name: str
    nodes: int
    gpus: int
    """GPUs of each machine."""
    peak: float
    """Bytes on the GPU and in the phase that come nearest to their limit."""
    phase: str
    """That phase, e.g. "actor update"."""
    limit: float
    """Share of the memory above which it is tight there."""
    verdict: Verdict
    host: float
    """Bytes of host memory that each machine needs."""
    mesh: list[str]
    """A line for each role."""
    tightest: Coordinates | None
    """The rank that needs most; None where all are alike."""
    ranks: list[dict[str, Any]] = field(repr=False, default_factory=list)
    """Megatron: every rank's place, its tightest phase and the bytes there."""


@dataclass(frozen=True)
class Advice:
    """Settings that make it fit, and what then comes out."""

    settings: dict[str, Any]
    verdict: Verdict
    peak: float
    phase: str
    """The phase that then comes nearest to its limit, and the bytes in it."""
    limit: float
    step_seconds: float
    slowdown: float
    """Times the present step (GPU-seconds, so that more GPUs are not free)."""

    @property
    def words(self) -> str:
        return " ".join(f"{key}={_text(value)}" for key, value in self.settings.items())


@dataclass(frozen=True)
class Plan:
    gpu: Gpu
    models: dict[str, dict[str, float]]
    pools: list[PoolPlan]
    phases: list[PhasePlan]
    engine: EnginePlan | None
    checkpoint: float
    """Bytes on disk of one checkpoint."""
    step_seconds: float
    verdict: Verdict
    notes: list[str]
    advice: list[Advice] = field(default_factory=list)

    @property
    def tightest(self) -> PhasePlan:
        """The phase that comes nearest to its limit."""
        return max(self.phases, key=lambda phase: phase.pressure(self.gpu.memory))

    @property
    def gpus(self) -> int:
        return sum(pool.nodes * pool.gpus for pool in self.pools)

    def values(self) -> dict[str, Any]:
        """Plain values for JSON: bytes and seconds."""
        out = asdict(self)
        for shown, pool in zip(out["pools"], self.pools, strict=True):
            shown["memory_share"] = pool.peak / self.gpu.memory
        for shown, phase in zip(out["phases"], self.phases, strict=True):
            shown["memory"]["total"] = phase.memory.total
        for shown, advice in zip(out["advice"], self.advice, strict=True):
            shown["words"] = advice.words
        return out


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
