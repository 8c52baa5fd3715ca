"""Servers, ports and keys: all of it bounded to two seconds, and a machine without network is a warning."""

import netrc
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from rlx.checkup.finding import Finding, Subject
from rlx.checkup.storage import hub_home
from rlx.env import index, interpreter
from rlx.env.requirements import hosts, locked_packages

TIMEOUT_S = 2.0
HUB = "https://huggingface.co"
RAY_PORT, DASHBOARD_PORT = 6379, 8265
FEWEST_PORTS = 1000
"""Ephemeral ports: every rank, engine and Ray worker opens several."""
TRUE = ("1", "true", "yes", "on")


def servers(subject: Subject) -> Iterator[Finding]:
    """Whether the package servers of the lock and the hub can be reached, both asked at once."""
    packages = set() if interpreter.chosen() or index.offline() else hosts(locked_packages(subject.extras))
    hub = None if _hub_offline() else os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    failures = index.unreachable(packages | ({hub} if hub else set()), TIMEOUT_S)
    if index.offline():
        yield Finding("packages", "ok", f"UV_OFFLINE={os.environ['UV_OFFLINE']}: uv stays off the network")
    for server in sorted(packages):
        fix = "made environments work; a new one needs network, a proxy (HTTPS_PROXY) or an archive (`rlx env pack`)"
        yield _server("packages", server, failures, fix)
    if hub:
        fix = "give models and data as local folders, a mirror by HF_ENDPOINT, or set HF_HUB_OFFLINE=1"
        yield _server("hub", hub, failures, fix)
    else:
        yield Finding("hub", "ok", "HF_HUB_OFFLINE: models and data come from the cache and local folders")


def _server(check: str, server: str, failures: dict[str, str], fix: str) -> Finding:
    if server in failures:
        return Finding(check, "warn", f"no network to {server}: {failures[server]}", fix)
    return Finding(check, "ok", f"{server} answers")


def _hub_offline() -> bool:
    return any(os.environ.get(name, "").lower() in TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def ports(subject: Subject) -> Iterator[Finding]:
    """Ray's usual ports, and the range that ranks and engines take theirs from."""
    ray = int(os.environ["RAY_PORT"]) if os.environ.get("RAY_PORT", "").isdecimal() else RAY_PORT
    taken = [port for port in (ray, DASHBOARD_PORT) if subject.uses_ray and not _free(port)]
    if taken:
        fix = "`ray start --head --port=N --dashboard-port=N`, RAY_PORT=N for the launch scripts; see `ray` below"
        yield Finding("ports", "warn", f"taken: {', '.join(map(str, taken))} (Ray's usual ones)", fix)
    if not _free(0):
        yield Finding("ports", "fail", "no port can be opened", "look for a firewall or a sandbox around this shell")
    elif (n_ports := _ephemeral()) is not None and n_ports < FEWEST_PORTS:
        fix = "sysctl net.ipv4.ip_local_port_range='32768 60999'"
        yield Finding("ports", "warn", f"only {n_ports} ephemeral ports", fix)
    elif not taken:
        yield Finding(
            "ports", "ok", f"{ray} and {DASHBOARD_PORT} are free" if subject.uses_ray else "ports can be opened"
        )


def _free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError:
            return False
    return True


def _ephemeral(file: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> int | None:
    try:
        low, high = map(int, file.read_text().split())
    except (OSError, ValueError):  # no Linux
        return None
    return high - low + 1


def hub_token(subject: Subject) -> Iterator[Finding]:
    """The hub's token: a variable or a file that others cannot read. Only gated models need one."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name):
            yield Finding("hub token", "ok", f"{name} is set")
            return
    file = Path(os.environ.get("HF_TOKEN_PATH") or hub_home() / "token").expanduser()
    try:
        mode, holds = stat.S_IMODE(file.stat().st_mode), bool(file.read_text().strip())
    except OSError:
        yield Finding("hub token", "ok", "none: enough for public models and data")
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield Finding("hub token", "warn", f"{file} can be read by others (mode {mode:o})", f"chmod 600 {file}")
    elif not holds:
        yield Finding("hub token", "warn", f"{file} is empty", "hf auth login")
    else:
        yield Finding("hub token", "ok", f"in {file}")


def wandb_key(subject: Subject) -> Iterator[Finding]:
    """A key for Weights & Biases, where trainer.logger names it."""
    if subject.config is None or "wandb" not in subject.config.trainer.logger:
        return
    mode = os.environ.get("WANDB_MODE", "")
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    if mode in ("offline", "disabled"):
        yield Finding("wandb", "ok", f"WANDB_MODE={mode}: no key needed")
    elif os.environ.get("WANDB_API_KEY") or _in_netrc(server):
        yield Finding("wandb", "ok", f"a key for {server} is there")
    else:
        fix = "export WANDB_API_KEY=..., or WANDB_MODE=offline and `wandb sync` later"
        yield Finding("wandb", "warn", f"no key for {server}: the run would log offline", fix)


def _in_netrc(host: str) -> bool:
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
