"""Free host memory: the machine's, or what a control group has left, whose file pages can be dropped."""

from pathlib import Path

import pytest

from verl_core.planning.host_memory import free_memory

MACHINE = {"proc/meminfo": "MemTotal: 2000 kB\nMemAvailable: 1000 kB\n", "proc/self/cgroup": "0::/a\n"}
KB = 1024


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 1000 * KB),
        ({"a/memory.max": "max", "a/memory.current": "5"}, 1000 * KB),
        ({"a/memory.max": f"{900 * KB}", "a/memory.current": f"{500 * KB}"}, 400 * KB),
        (
            {
                "a/memory.max": f"{900 * KB}",
                "a/memory.current": f"{500 * KB}",
                "a/memory.stat": f"anon 7\nactive_file {10 * KB}\ninactive_file {20 * KB}\n",
            },
            430 * KB,
        ),
        ({"memory.max": f"{600 * KB}", "memory.current": f"{700 * KB}"}, 0),  # the group above it is full
        ({"memory/memory.limit_in_bytes": f"{90 * KB}", "memory/memory.usage_in_bytes": f"{50 * KB}"}, 40 * KB),
    ],
)
def test_free_memory(tmp_path: Path, files: dict[str, str], free: int):
    for name, text in (MACHINE | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory(tmp_path) == free


def test_nothing_says(tmp_path: Path):
    assert free_memory(tmp_path) is None
