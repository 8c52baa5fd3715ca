"""Host memory of this machine, and what a container may have of it."""

from __future__ import annotations

from pathlib import Path

HERE = Path("/")
_USED = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}


def machine_memory(root: Path = HERE, entry: str = "MemTotal") -> int | None:
    """Bytes, by an entry of /proc/meminfo; None where there is none. `root` holds proc and sys."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{entry}:")), None)


def container_limit(root: Path = HERE) -> int | None:
    """The least memory limit of this process's control groups, bytes, None for none: cgroup v2, else v1."""
    limits = [_number(folder / name) for folder, name in _groups(root)]
    return min((limit for limit in limits if limit is not None), default=None)


def free_memory(root: Path = HERE) -> int | None:
    """Bytes that may still be taken: what the machine has available, or less where a control group has less left, whose
    file pages count as free; None where nothing says."""
    free = [machine_memory(root, "MemAvailable")]
    for folder, name in _groups(root):
        limit, used = _number(folder / name), _number(folder / _USED[name])
        if limit is not None and used is not None:
            free.append(limit - used + _file_pages(folder / "memory.stat"))
    known = [n for n in free if n is not None]
    return max(0, min(known)) if known else None


def _groups(root: Path) -> list[tuple[Path, str]]:
    """Folders of this process's control groups, from the innermost, and the file there that holds the limit."""
    try:
        group = (root / "proc/self/cgroup").read_text()
    except OSError:
        return []
    unified = next((line[3:] for line in group.splitlines() if line.startswith("0::")), "/").strip("/")
    top = root / "sys/fs/cgroup"
    folders = [folder for folder in (top / unified, *(top / unified).parents) if folder.is_relative_to(top)]
    return [*((folder, "memory.max") for folder in folders), (top / "memory", "memory.limit_in_bytes")]


def _file_pages(stat: Path) -> int:
    try:
        fields = dict(line.split() for line in stat.read_text().splitlines())
    except OSError:
        return 0
    return sum(int(fields.get(name, 0)) for name in ("active_file", "inactive_file"))


def _number(file: Path) -> int | None:
    """The file's number; None when it is absent or says `max`."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
