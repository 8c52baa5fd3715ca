"""Ranks as Ray actors, on one machine or many."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from verl_core.config.errors import EnvError, RlxError, RunError
from verl_core.config.schema import RlxConfig
from verl_core.controller.executors.base import Placement, WorkerGroup
from verl_core.controller.executors.nodes import check_nodes
from verl_core.controller.executors.tells import WEIGHTS, RayTell
from verl_core.controller.executors.variables import carried
from verl_core.controller.out_of_memory import out_of_memory
from verl_core.controller.worker import Worker
from verl_core.platforms import current
from verl_core.weights.sending import Tell

log = logging.getLogger(__name__)

JOIN_S = 10
"""Longest wait for the head of a cluster to take a connection."""
RESERVE_S = 120
"""Longest wait for nodes that are still starting."""
ASIDE = {"engine": 16, WEIGHTS: 4}
"""The actors' concurrency groups and their threads, for calls to engines in other processes: what they generate (and a
checkpoint that is written), and new weights, which must not wait behind that."""
LONGEST = 300  # characters of a foreign error's text that are shown


class RayGroup:
    def __init__(self, actors: list[Any]):
        self.actors = actors
        self.size = len(actors)

    async def call(self, method: str, *args: Any) -> list[Any]:
        import ray

        shared = [ray.put(a) for a in args]  # one copy in the object store, however many ranks read it
        return await self._gather([getattr(a, method).remote(*shared) for a in self.actors])

    async def scatter(self, method: str, arguments: Sequence[tuple]) -> list[Any]:
        return await self._gather(
            [getattr(a, method).remote(*args) for a, args in zip(self.actors, arguments, strict=True)]
        )

    async def one(self, rank: int, method: str, *args: Any, aside: bool = False) -> Any:
        call = getattr(self.actors[rank], method)
        if aside:
            call = call.options(concurrency_group=next(iter(ASIDE)))
        return (await self._gather([call.remote(*args)]))[0]

    def tells(self) -> list[Tell]:
        return [RayTell(actor) for actor in self.actors]

    async def _gather(self, calls: list[Any]) -> list[Any]:
        # The first failure ends the wait at once: the other ranks may sit in a collective that will never complete.
        from ray.exceptions import RayError

        try:
            return list(await asyncio.gather(*[_awaitable(c) for c in calls]))
        except RayError as error:
            log.info("a rank failed", exc_info=error)  # into train.log; the person sees one line
            raise translated(error) from error

    async def close(self) -> None:
        import ray

        for actor in self.actors:
            ray.kill(actor)


def translated(error: Exception) -> RlxError:
    """What a person is told of a call that failed on a rank: an rlx error as it was raised there, else one line."""
    from ray.exceptions import RayActorError, RayTaskError

    if isinstance(error, RayActorError):
        return RunError(
            "a rank's process died",
            "resume with `rlx train --resume`; Ray keeps what it said in /tmp/ray/session_latest/logs",
        )
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, RlxError):
        return cause
    if told := out_of_memory(cause):
        return told
    text = " ".join(str(cause).split())
    shown = text if len(text) <= LONGEST else text[:LONGEST] + "..."
    return RunError(f"a rank failed: {type(cause).__name__}: {shown}", "train.log has its traceback")


def _into_log(data: dict[str, Any], ignore_prefix: bool) -> None:
    """Takes what Ray's driver would print on stdout when an actor dies, `log_to_driver` or not."""
    log.info("Ray says: %s", " ".join(data["lines"]))


def _knock(address: str) -> None:
    """OSError when nobody listens at host:port; Ray itself would try for more than five minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "://" not in address:  # not `auto`, not Ray's own kind of address
        socket.create_connection((host, int(port)), timeout=JOIN_S).close()


def _nodes_of(places: Any) -> list[str]:
    """Ids of the nodes on which a placement group has bundles."""
    from ray.util import placement_group_table

    return list(placement_group_table(places)["bundles_to_node_id"].values())


async def _awaitable(reference: Any) -> Any:
    return await reference


class RayExecutor:
    def __init__(self) -> None:
        self._groups: list[RayGroup] = []
        self._started = False

    async def start(
        self, config: RlxConfig, plan: Sequence[Placement], model_folder: str, blank: bool = False
    ) -> dict[str, WorkerGroup]:
        # Without this Ray sees the `uv run` that started the command and would start its workers through uv as well.
        os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError:
            raise EnvError(
                "two ranks or more run under Ray, which this interpreter lacks", "pip install ray, or unset RLX_PYTHON"
            ) from None

        self._join(ray, config, sum(p.ranks * p.gpus for p in plan))
        on_gpu = current(config.trainer.device).name != "cpu"
        places = [await self._reserve(placement, on_gpu) for placement in plan]
        if config.cluster.ray_address is not None:  # else the only node is this process's
            await check_nodes(node for place in places for node in _nodes_of(place))
        groups: dict[str, WorkerGroup] = {}
        for placement, place in zip(plan, places, strict=True):
            group = await self._start_pool(config, placement, place, (model_folder, blank), on_gpu)
            groups[placement.pool] = group
        return groups

    def _join(self, ray: Any, config: RlxConfig, ranks: int) -> None:
        """Joins the cluster of cluster.ray_address, or starts Ray here. EnvError when it cannot be joined."""
        if ray.is_initialized():
            return
        address = config.cluster.ray_address
        own = address is None
        try:
            if address is not None:
                _knock(address)
            ray.init(
                address=address or "local",  # by itself Ray would join a cluster that somebody left running here
                num_cpus=ranks if own else None,
                include_dashboard=False if own else None,
                logging_level=logging.ERROR,
                log_to_driver=False,  # Ray would print it on stdout, which is ours; errors come back as errors
                runtime_env={"env_vars": carried(os.environ)},
            )
        except (OSError, RuntimeError, ValueError) as error:  # nobody answers; another Ray or Python there
            if own:
                raise
            text = " ".join(str(error).split())[:LONGEST]
            raise EnvError(
                f"cannot join the Ray cluster at {address}: {text}",
                "start it from the environment of this job: `rlx env run ... -- ray start`",
            ) from error
        ray._private.worker.print_to_stdstream = _into_log
        self._started = True

    async def _reserve(self, placement: Placement, on_gpu: bool) -> Any:
        """The pool's share of the cluster: one bundle a node. RunError when the cluster has not enough."""
        import ray
        from ray.util.placement_group import placement_group

        nodes = placement.ranks * placement.gpus // placement.gpus_per_node
        one = {"CPU": 1.0, "GPU": 1.0} if on_gpu else {"CPU": 1.0}
        bundle = {k: v * placement.gpus_per_node for k, v in one.items()}
        places = placement_group([bundle] * nodes, strategy="STRICT_SPREAD" if nodes > 1 else "PACK")
        if not await asyncio.to_thread(places.wait, RESERVE_S):
            has = ray.cluster_resources()
            raise RunError(
                f"pool {placement.pool} asks for {nodes} node(s) with {bundle}, the Ray cluster has {has}",
                "start more nodes, or make cluster.pools smaller",
            )
        return places

    async def _start_pool(
        self, config: RlxConfig, placement: Placement, places: Any, model: tuple[str, bool], on_gpu: bool
    ) -> RayGroup:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        decorate: Any = ray.remote  # whose types know nothing of concurrency groups
        remote = decorate(concurrency_groups=ASIDE)(Worker)
        actors = [
            remote.options(
                num_cpus=placement.gpus,
                num_gpus=placement.gpus if on_gpu else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    places, rank * placement.gpus // placement.gpus_per_node
                ),
                # A node's Ray may have been started from another environment than this job's.
                runtime_env={} if config.cluster.ray_address is None else {"py_executable": sys.executable},
            ).remote(rank, placement.ranks, config, placement.roles, *model)
            for rank in range(placement.ranks)
        ]
        group = RayGroup(actors)
        self._groups.append(group)
        master = None  # engines have nothing to say to each other
        if placement.roles != ("rollout",):
            master = (await group._gather([actors[0].free_address.remote()]))[0]
        await group.call("start", master)
        return group

    async def close(self) -> None:
        import ray

        while self._groups:
            await self._groups.pop().close()
        if self._started:
            ray.shutdown()
            self._started = False
