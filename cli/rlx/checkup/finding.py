"""What a check gives back, and what the machine is checked for."""

from dataclasses import dataclass
from typing import Literal

from verl_core.config.compose import Resolved
from verl_core.config.effective import effective, extras
from verl_core.config.schema import RlxConfig

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What one check saw; `fix` is the way to mend it, for warn and fail."""

    check: str
    state: State
    found: str
    fix: str | None = None


@dataclass(frozen=True)
class Subject:
    """What the machine is checked for: a profile with its settings, else training in general."""

    extras: tuple[str, ...] = ("fsdp",)
    config: RlxConfig | None = None  # effective

    @classmethod
    def of(cls, resolved: Resolved) -> "Subject":
        config = effective(resolved.config)
        return cls(extras(config), config)

    @property
    def device(self) -> str:
        """trainer.device: auto, cpu or cuda."""
        return self.config.trainer.device if self.config else "auto"

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU would be used if there is one."""
        return self.device != "cpu"

    @property
    def gpus_here(self) -> int:
        """GPUs this machine should have: all of the pools when they are on one machine, else the largest share."""
        if self.config is None:
            return 0
        pools = self.config.cluster.pools.values()
        alone = self.config.cluster.ray_address is None and all(pool.nodes == 1 for pool in pools)
        return sum(pool.gpus for pool in pools) if alone else max(pool.gpus for pool in pools)

    @property
    def uses_ray(self) -> bool:
        return self.config is None or self.config.cluster.executor == "ray"

    @property
    def runs_dir(self) -> str:
        """Where run directories go."""
        return self.config.trainer.default_local_dir if self.config else "runs"
