"""Which sandbox a configuration means."""

from functools import cache

from verl_core.config.errors import EnvError
from verl_core.config.sandbox_checks import runs_remotely
from verl_core.config.schema_sandbox import SandboxConfig
from verl_core.rewards.sandbox.bubblewrap import Bubblewrap
from verl_core.rewards.sandbox.local import LocalSandbox
from verl_core.rewards.sandbox.nsjail import Nsjail
from verl_core.rewards.sandbox.protocol import Limits, Sandbox
from verl_core.rewards.sandbox.remote import Remote
from verl_core.rewards.sandbox.rlimits import Rlimits

_LOCAL: dict[str, type[LocalSandbox]] = {"bubblewrap": Bubblewrap, "nsjail": Nsjail, "rlimits": Rlimits}


def sandbox_of(config: SandboxConfig) -> Sandbox:
    """The sandbox, which has run a program. Raises EnvError where its program is missing or must not make namespaces,
    and for `auto` where only weaker ones are left."""
    if runs_remotely(config):
        return Remote(config)
    return _auto() if config.type == "auto" else _local(config.type)


def limits_of(config: SandboxConfig) -> Limits:
    """The limits of one run."""
    return Limits(config.run_timeout_s, config.memory_mb, config.output_kb, config.tmp_mb)


@cache
def _local(name: str) -> LocalSandbox:
    sandbox = _LOCAL[name]()
    sandbox.probe()
    return sandbox


def _auto() -> LocalSandbox:
    faults = []
    for name in ("bubblewrap", "nsjail"):
        try:
            return _local(name)
        except EnvError as e:
            faults.append(str(e))
    raise EnvError(
        f"no sandbox for programs: {'; '.join(faults)}",
        hint="`apt-get install bubblewrap`, or set reward.sandbox.url to a SandboxFusion server; "
        "reward.sandbox.type=rlimits runs programs with this user's rights to files",
    )
