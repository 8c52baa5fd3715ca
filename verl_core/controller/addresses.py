"""Where the ranks of other machines reach this one."""

from __future__ import annotations

import socket


def own_host(ray_address: str | None) -> str:
    """This machine as the others know it. Its own name may stand for a loopback address in /etc/hosts; Ray knows the
    address that the cluster uses."""
    if ray_address is None:
        return "127.0.0.1"
    import ray

    return ray.util.get_node_ip_address()


def free_address(ray_address: str | None) -> str:
    """host:port that nobody listens at."""
    with socket.socket() as s:
        s.bind(("", 0))
        port = s.getsockname()[1]
    return f"{own_host(ray_address)}:{port}"
