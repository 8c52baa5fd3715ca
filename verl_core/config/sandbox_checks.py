"""What the sandbox's keys ask of each other and of the scorer processes that use it."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from verl_core.config.key_checks import Said
from verl_core.config.schema import RlxConfig
from verl_core.config.schema_sandbox import SandboxConfig

_KEY = "reward.sandbox"


def runs_remotely(sandbox: SandboxConfig) -> bool:
    return sandbox.type == "remote" or (sandbox.type == "auto" and sandbox.url is not None)


def runs_programs(config: RlxConfig) -> bool:
    """Whether a part of the reward, by its name, runs programs. The rows' own rules are not known here."""
    return "code" in config.reward.scorers


def sandbox_faults(said: Said, e: RlxConfig) -> Iterator[str]:
    own = e.reward.sandbox
    if own.type == "remote" and own.url is None:
        yield f"{said(f'{_KEY}.type')}: set {_KEY}.url to the server's address"
    if own.url is not None and (urlsplit(own.url).scheme not in ("http", "https") or not urlsplit(own.url).hostname):
        yield f"{said(f'{_KEY}.url')} is no address: it begins with http:// or https:// and a host"
    if own.timeout_s is not None and own.timeout_s >= e.reward.timeout_s:
        yield f"{said(f'{_KEY}.timeout_s')} is not below {said('reward.timeout_s')}, which ends the scorer itself"
