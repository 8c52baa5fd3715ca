"""The same environment on every node: ranks run the job's interpreter by its path, and before one starts each node
tells what it has there. A node that has something else is refused by name."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import verl_core
from verl_core.config.errors import EnvError
from verl_core.controller.fingerprint import PACKAGES, fingerprint

ANSWER_S = 60
"""Longest that a node may take to start the interpreter and read the source; a cold network disk takes about 10 s."""
START_S = 60
"""Longest that Ray may take on top, to start a process on the node."""


async def check_nodes(node_ids: Iterable[str]) -> None:
    """Raises EnvError that names the first node (in Ray's order) that lacks this interpreter or rlx's source, that has
    other versions than this process, or that does not answer within ANSWER_S + START_S."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    wanted = set(node_ids)
    nodes = [node for node in ray.nodes() if node["NodeID"] in wanted]
    look: Any = ray.remote(_looker())
    calls = [
        look.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(sys.executable, ANSWER_S)
        for node in nodes
    ]
    ready, _ = await asyncio.to_thread(ray.wait, calls, num_returns=len(calls), timeout=ANSWER_S + START_S)
    ours = fingerprint()
    for node, call in zip(nodes, calls, strict=True):
        name = f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        if call not in ready:
            ray.cancel(call, force=True)
            raise EnvError(f"{name} did not answer within {ANSWER_S + START_S} s", "`ray status`; then start it again")
        try:
            answer = ray.get(call)
        except RayError as problem:
            raise EnvError(
                f"{name} cannot start a process: {' '.join(str(problem).split())[:200]}", "`ray status`"
            ) from problem
        _judge(name, answer, ours)


def _looker() -> Callable[[str, int], dict[str, str]]:
    """The function that runs on the node, in the interpreter of its Ray. One made here travels by value: that
    interpreter need not have rlx."""

    def look(python: str, timeout_s: int) -> dict[str, str]:
        import os
        import subprocess

        if not os.path.exists(python):  # noqa: PTH110  (a string on its way through Ray)
            return {"absent": "interpreter"}
        command = [python, "-P", "-m", "verl_core.controller.fingerprint"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            return {"failed": f"it did not answer within {timeout_s} s"}
        except OSError as problem:
            return {"failed": str(problem.strerror)}
        if done.returncode == 0:
            return {"found": done.stdout}
        if "No module named 'verl_core" in done.stderr:
            return {"absent": "source"}
        return {"failed": (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]}

    return look


def _judge(name: str, answer: dict[str, str], ours: dict[str, str]) -> None:
    if answer.get("absent") == "interpreter":
        raise EnvError(f"{name} lacks the interpreter {sys.executable}", _make_there())
    if answer.get("absent") == "source":
        raise EnvError(f"{name} lacks rlx's source, which is here in {_source()}", _same_source())
    if "failed" in answer:
        raise EnvError(f"{name}: {sys.executable} does not start: {answer['failed']}", _make_there())
    theirs = json.loads(answer["found"])
    differing = {what: theirs.get(what) for what, value in ours.items() if theirs.get(what) != value}
    if differing:
        shown = ", ".join(f"{what} {value} (here {ours[what]})" for what, value in differing.items())
        of_environment = {"Python", *PACKAGES} & set(differing)
        raise EnvError(f"{name} differs: {shown}", _make_there() if of_environment else _same_source())


def _make_there() -> str:
    """The command that makes this environment on another node."""
    folder = Path(sys.executable).parent.parent
    if (command := _sync_command(folder)) is None:
        return f"install the same interpreter there, in {folder}, or use one on a disk that all nodes mount"
    return f"there: `RLX_ENVS={shlex.quote(str(folder.parent))} {command}`, or RLX_ENVS on a disk that all nodes mount"


def _same_source() -> str:
    command = _sync_command(Path(sys.executable).parent.parent) or "rlx env sync"
    return f"there: the same rlx at the same place, then `{command}`, or use one on a disk that all nodes mount"


def _sync_command(folder: Path) -> str | None:
    """What makes the environment in `folder`; None for an interpreter that rlx did not make."""
    try:
        extras = json.loads((folder / "rlx-env.json").read_text(encoding="utf-8"))["extras"]
    except (OSError, ValueError, KeyError):
        return None
    return shlex.join(["rlx", "env", "sync", *(word for extra in extras for word in ("--extra", extra))])


def _source() -> Path:
    """The folder on PYTHONPATH that this process has rlx from."""
    return Path(verl_core.__file__).parent.parent
