"""What earlier runs left: a Ray cluster, jobs and engine processes whose parent is gone."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlx.checkup.finding import Finding, Subject

RAY = ("raylet", "gcs_server")
OF_A_RUN = re.compile(r"-m verl_core\.|^VLLM::|^sglang::|^ray::")
"""rlx's jobs and scorers by their command, engine and Ray processes by the titles they give themselves."""
REAPERS = ("systemd", "init", "tini", "dumb-init", "docker-init", "catatonit")
"""Who takes in processes whose parent has ended, beside process 1."""
SHOWN = 5


@dataclass(frozen=True)
class Process:
    """A process of this user."""

    pid: int
    parent: int
    name: str
    command: str


def ray_cluster(subject: Subject) -> Iterator[Finding]:
    """Ray processes of this user."""
    left = [process for process in processes() if process.name in RAY]
    if not left:
        yield Finding("ray", "ok", "no Ray processes of yours are running")
        return
    names = ", ".join(f"{process.name} ({process.pid})" for process in left)
    fix = "`rlx env run -- ray stop` if unwanted"
    yield Finding("ray", "warn", f"a Ray cluster of yours is running: {names}", fix)


def leftover(subject: Subject) -> Iterator[Finding]:
    """Jobs, scorers and engines whose parent is gone. A run left in the background on purpose looks the same."""
    orphans = [process for process in processes() if OF_A_RUN.search(process.command) and _orphaned(process)]
    if not orphans:
        yield Finding("leftover", "ok", "no processes of earlier runs")
        return
    shown = ", ".join(f"{process.pid} ({process.command[:60]})" for process in orphans[:SHOWN])
    more = f" and {len(orphans) - SHOWN} more" if len(orphans) > SHOWN else ""
    fix = f"unless you left a run in the background: kill {' '.join(str(process.pid) for process in orphans)}"
    yield Finding("leftover", "warn", f"their parent is gone: {shown}{more}", fix)


def _orphaned(process: Process) -> bool:
    """Whether the parent has ended: the process belongs to process 1 or another reaper, and that is no run itself."""
    try:
        name = Path(f"/proc/{process.parent}/comm").read_text().strip()
    except OSError:
        return True
    if OF_A_RUN.search(_command(Path(f"/proc/{process.parent}"))):
        return False
    return process.parent == 1 or name in REAPERS


def processes() -> Iterator[Process]:
    """This user's processes; none where there is no /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == os.getuid():
                # pid (name) state parent ...: the name may hold anything, also spaces and brackets
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                yield Process(int(folder.name), int(rest.split()[1]), name, _command(folder))
        except OSError:  # it has ended since
            continue


def _command(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
