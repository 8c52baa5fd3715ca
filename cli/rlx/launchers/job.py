"""What is launched: a configuration, the words that give it, and the machines it asks for."""

import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.schema import LaunchConfig, PoolConfig, RlxConfig

COMMON_MACHINE = 8
"""GPUs of the usual machine: single-machine pools that fit into it together are taken to share one."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Machines:
    """`count` equal machines with room for `ranks` ranks each; `gpus` of them are GPUs (0: ranks on the CPU)."""

    count: int
    ranks: int
    gpus: int

    def __str__(self) -> str:
        unit = "GPU" if self.gpus else "CPU rank"
        what = f"{self.ranks} {unit}" + ("s" if self.ranks > 1 else "")
        return f"one machine, {what}" if self.count == 1 else f"{self.count} machines of {what}"


@dataclass(frozen=True)
class Job:
    config: RlxConfig
    """As asked for."""
    profile: str
    words: tuple[str, ...] = ()
    """What stands after `rlx train`: profile, `-f FILE`, key=value."""
    flags: tuple[str, ...] = ()
    """Options of `rlx train` that hold on the machines too."""
    folder: Path | None = None
    """Absolute path to run in; None: a project's script, which runs in the project it lies in."""
    name: str | None = None
    """trainer.experiment_name; None: the launcher or the run chooses."""

    @property
    def launch(self) -> LaunchConfig:
        return self.config.launch

    @cached_property
    def machines(self) -> Machines:
        """What the pools need together. UserError when launch.gpus_per_node is smaller than a pool's machine."""
        pools = effective(self.config).cluster.pools
        room = self.launch.gpus_per_node or _room(list(pools.values()))
        for name, pool in pools.items():
            if pool.gpus > room:
                raise UserError(
                    f"pool {name} has {pool.gpus} ranks on a machine, launch.gpus_per_node={room} has fewer",
                    f"launch.gpus_per_node={pool.gpus}, or more machines with fewer ranks each",
                )
        return Machines(_count(list(pools.values()), room), room, 0 if self.config.trainer.device == "cpu" else room)

    @property
    def title(self) -> str:
        """One line for the head of a script."""
        return f"{self.profile} on {self.machines}"

    @property
    def script_folder(self) -> str:
        """The folder to change to, as a shell word."""
        return shlex.quote(str(self.folder)) if self.folder else '"$(dirname "$0")/.."'

    @property
    def script_words(self) -> str:
        """The words as a shell reads them, with a space after each."""
        return "".join(f"{shlex.quote(word)} " for word in self.words)

    def exports(self) -> list[str]:
        """`export NAME=value` for each variable of launch.env. UserError for what is no name."""
        for name in self.launch.env:
            if not _VARIABLE.fullmatch(name):
                raise UserError(f"launch.env: {name!r} is no name of an environment variable", "letters, digits and _")
        return [f"export {name}={shlex.quote(value)}" for name, value in self.launch.env.items()]


def one_line(key: str, value: str) -> str:
    """The value of a key that goes into one line of a script. UserError for one that does not fit there."""
    if not value or not value.isprintable():
        raise UserError(f"{key}={value!r}: expected one line of text", f"{key}=null leaves it to the site")
    return value


def _room(pools: list[PoolConfig]) -> int:
    together = sum(pool.gpus for pool in pools)
    if together <= COMMON_MACHINE and all(pool.nodes == 1 for pool in pools):
        return together
    return max(pool.gpus for pool in pools)


def _count(pools: list[PoolConfig], room: int) -> int:
    """Machines with `room` places that hold all pools, each pool's parts on different machines; first fit, largest
    parts first."""
    free: list[int] = []
    for pool in sorted(pools, key=lambda pool: pool.gpus, reverse=True):
        fitting = [i for i, places in enumerate(free) if places >= pool.gpus][: pool.nodes]
        for i in fitting:
            free[i] -= pool.gpus
        free += [room - pool.gpus] * (pool.nodes - len(fitting))
    return len(free)
