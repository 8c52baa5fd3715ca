"""What an executor offers: one group of workers for each pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from verl_core.config.effective import role_pools
from verl_core.config.schema import RlxConfig

if TYPE_CHECKING:
    from verl_core.weights.sending import Tell


@dataclass(frozen=True)
class Placement:
    """Which roles live on the ranks of one pool. A rank has one GPU, or all `gpus` of an engine that spans several."""

    pool: str
    ranks: int
    gpus_per_node: int
    roles: tuple[str, ...]
    gpus: int = 1


def placements(config: RlxConfig) -> list[Placement]:
    """The pools that have work, in the order of cluster.pools, from an effective configuration."""
    where = role_pools(config)
    spans = 1 if config.rollout.engine == "hf" else config.rollout.tensor_model_parallel_size
    plan = []
    for name, pool in config.cluster.pools.items():
        if roles := tuple(role for role, at in where.items() if at == name):
            gpus = spans if roles == ("rollout",) else 1
            plan.append(Placement(name, pool.nodes * pool.gpus // gpus, pool.gpus, roles, gpus))
    return plan


class WorkerGroup(Protocol):
    """The workers of one pool."""

    size: int

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Runs the method with the same arguments on every rank; results by rank. An error on any rank is raised."""
        ...

    async def scatter(self, method: str, arguments: Sequence[tuple]) -> list[Any]:
        """Runs the method on rank i with arguments[i]; results by rank."""
        ...

    async def one(self, rank: int, method: str, *args: Any, aside: bool = False) -> Any:
        """Runs the method on one rank. `aside`: in another thread than all the rest, at the same time; for what only
        talks to an engine in another process, or writes files."""
        ...

    def tells(self) -> list[Tell]:
        """Calls to the weight inboxes of the ranks' engines, for the ranks of another pool."""
        ...

    async def close(self) -> None: ...


class Executor(Protocol):
    async def start(
        self, config: RlxConfig, plan: Sequence[Placement], model_folder: str, blank: bool = False
    ) -> dict[str, WorkerGroup]:
        """Starts every pool's workers and returns their groups by pool name. `blank`: see Worker."""
        ...

    async def close(self) -> None:
        """Ends every process the executor started. Safe to call twice."""
        ...
