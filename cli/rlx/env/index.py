"""Whether the servers that hold the locked packages can be reached, asked before a download starts."""

import os
import socket
import threading
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

TIMEOUT_S = 3.0


def offline() -> bool:
    """Whether uv was told to stay off the network."""
    return os.environ.get("UV_OFFLINE", "").lower() in ("1", "true", "yes", "on", "y", "t")


def unreachable(servers: Iterable[str], timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """server -> reason, for each server (scheme://host[:port]) to which no connection opens within `timeout_s` in all.

    A proxy that stands between (HTTPS_PROXY, ALL_PROXY, NO_PROXY) is connected to in its place; one that only uv's
    own settings name is believed.
    """
    if _uv_names_a_proxy():
        return {}
    failures: dict[str, str] = dict.fromkeys(servers, f"no answer in {timeout_s:g} s")

    def connect(server: str) -> None:
        host, port, via = _endpoint(server)
        try:
            socket.create_connection((host, port), timeout_s).close()
            failures.pop(server)
        except OSError as problem:
            failures[server] = f"{via}{problem.strerror or problem}"

    # Threads, because looking up a name has no time limit of its own.
    threads = [threading.Thread(target=connect, args=(server,), daemon=True) for server in list(failures)]
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(failures)


def _endpoint(server: str) -> tuple[str, int, str]:
    """(host, port, words for a message) of what must be connected to for `server`."""
    target = urlsplit(server)
    host = target.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(host):
        return host, target.port or _port(target.scheme), ""
    through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return through.hostname or "", through.port or _port(through.scheme), f"proxy {through.hostname}: "


def _port(scheme: str) -> int:
    return {"http": 80, "socks5": 1080, "socks5h": 1080}.get(scheme, 443)


def _uv_names_a_proxy() -> bool:
    """Whether a uv.toml sets a proxy."""
    if os.environ.get("UV_NO_CONFIG"):
        return False
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    named = os.environ.get("UV_CONFIG_FILE")
    for file in [Path(named)] if named else [home / "uv" / "uv.toml", Path("/etc/uv/uv.toml")]:
        try:
            settings = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # absent, or for uv to complain about
            continue
        if "http-proxy" in settings or "https-proxy" in settings:
            return True
    return False
