"""The checks of `rlx doctor`: each looks at one thing and says ok, warn or fail, with a way to mend it. No torch.

One file a field: `software`, `gpu`, `storage`, `network`, `nccl`, `limits`, `variables`, `processes`.
"""

from collections.abc import Callable, Iterator

from rlx.checkup import gpu, limits, nccl, network, processes, software, storage, variables
from rlx.checkup.finding import Finding, Subject
from verl_core.config.errors import RlxError

Check = Callable[[Subject], Iterator[Finding]]

CHECKS: dict[str, Check] = {
    "python": software.python,
    "platform": software.system,
    "uv": software.uv_program,
    "lock": software.lock,
    "RLX_PYTHON": software.interpreter_at_hand,
    "environment": software.environment,
    "disk": storage.disks,
    "/dev/shm": storage.shared_memory,
    "memory": limits.memory,
    "limits": limits.ulimits,
    "clock": limits.clock,
    "driver": gpu.cuda_driver,
    "gpu": gpu.gpus,
    "nccl": nccl.nccl,
    "network": network.servers,
    "ports": network.ports,
    "hub token": network.hub_token,
    "wandb": network.wandb_key,
    "variables": variables.variables,
    "git": software.git,
    "ray": processes.ray_cluster,
    "leftover": processes.leftover,
}
"""In the order of a user's way: what an environment needs, the machine, the network, what earlier runs left."""


def findings(subject: Subject) -> Iterator[Finding]:
    """All checks. One that meets an error of rlx's own kind reports it as its failure."""
    for name, check in CHECKS.items():
        try:
            yield from check(subject)
        except RlxError as problem:
            yield Finding(name, "fail", problem.message, problem.hint)
